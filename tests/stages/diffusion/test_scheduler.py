"""The policy of denoising steps, as traces and over any population.

Faults pinned: a step longer than its budget, or of pictures that do not fit together; a large request that keeps small ones
waiting, and the reverse; a request that waits although it is its turn; a picture that takes a step too many or none.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.stages.diffusion.plan import BranchKey, PictureKey, StepPlan
from omnistage.stages.diffusion.scheduler import DiffusionScheduler, PictureWork


def work(shape: Hashable = "s", tokens: int = 1, steps: int = 4, branches: int = 1) -> PictureWork:
    return PictureWork(shape, tokens, branches, [1 - step / steps for step in range(steps)])


class Population:
    """Requests that run; `history` holds the requests of every step that was taken."""

    def __init__(self, slots: int = 16, budget: int = 100, *, one_timestep: bool = False) -> None:
        self.scheduler = DiffusionScheduler(slots=slots, budget=budget, one_timestep=one_timestep)
        self.ages = 0
        self.history: list[str] = []
        self.ended: list[str] = []

    def add(self, name: str, *works: PictureWork, priority: int = 0) -> None:
        order = (priority, self.ages)
        self.ages += 1
        self.scheduler.add(name, order)
        self.scheduler.set_input(name, True)
        self.scheduler.begin(name, order, works or (work(),))

    def step(self, count: int = 1) -> str:
        """The requests of the last of `count` steps, one letter per picture."""
        for _ in range(count):
            self.scheduler.seat()
            plan = self.scheduler.schedule()
            self.history.append("".join(key.request_id for key in plan.pictures))
            for key in self.scheduler.advance(plan):
                if not any(other.request_id == key.request_id for other in self.scheduler._pictures):
                    self.scheduler.remove(key.request_id)
                    self.ended.append(key.request_id)
        return self.history[-1]


def test_pictures_join_and_leave_at_every_step() -> None:
    """Fault: a request waits until those before it have ended, or stays in the batch when it has."""
    some = Population()
    some.add("a", work(steps=3))
    assert some.step() == "a"
    some.add("b", work(steps=2))
    assert [some.step() for _ in range(4)] == ["ba", "ab", "", ""]
    assert (some.ended, some.scheduler.can_step()) == (["a", "b"], False)


def test_pictures_of_other_shapes_take_turns_and_are_counted() -> None:
    """Fault: tensors of two shapes meet in a batch, or nobody knows why batches are small."""
    some = Population()
    some.add("a", work("small"), work("small"))
    some.add("b", work("large"))
    assert [some.step() for _ in range(3)] == ["aa", "b", "b"]
    assert some.scheduler.apart == {"shape": 5, "timestep": 0, "budget": 0}


def test_one_timestep_for_all_batches_those_at_the_same_step() -> None:
    """Fault: rows of two timesteps meet in a model that takes one."""
    some = Population(one_timestep=True)
    some.add("a", work(steps=2))
    some.add("b", work(steps=2))
    assert some.step() == "ab"
    some.add("c", work(steps=2))
    some.add("d", work(steps=2))
    assert [some.step(), some.step(), some.step()] == ["ab", "cd", "cd"]
    assert some.scheduler.apart == {"shape": 0, "timestep": 2, "budget": 0}


def test_a_step_is_within_its_budget_and_a_newcomer_begins_at_once() -> None:
    """Fault: a batch larger than memory; a younger request waits for the whole run of the older ones, or they for its."""
    some = Population(budget=4)
    some.add("a", work(tokens=2, steps=4))
    some.add("b", work(tokens=2, steps=4))
    assert some.step() == "ab"
    some.add("c", work(tokens=2, steps=4))
    assert [some.step() for _ in range(5)] == ["ca", "ab", "ab", "bc", "c"]
    assert some.scheduler.apart["budget"] == 3


def test_newcomers_keep_nobody_out() -> None:
    """Fault: as long as requests come that take one step, an older one takes none."""
    some = Population(budget=1)
    some.add("a", work(steps=3))
    some.step()
    for name in "bcdefg":
        some.add(name, work(steps=1))
        some.step()
    assert some.history == ["a", "b", "a", "c", "a", "d", "e"]


def test_who_has_least_left_takes_every_other_step() -> None:
    """Fault: four steps wait for the twenty that somebody who came before has left, in all pictures; or nobody gives the oldest its
    turn, so that as long as short ones come a long one never ends."""
    some = Population(budget=1)
    some.add("a", work(steps=9))
    some.add("b", work(steps=3), work(steps=3))
    some.add("c", work(steps=4))
    some.step(3)  # each begins in turn with the oldest
    assert some.history == ["a", "b", "a"]
    some.step(7)
    assert some.history[3:] == ["c", "a", "c", "a", "c", "a", "c"]
    for name in "defgh":
        some.add(name, work(steps=2))
        some.step(2)
    some.step(4)
    assert "".join(some.history[10:]) == "adaeafagbhbdbe"


def test_branches_that_exceed_the_budget_run_one_after_the_other() -> None:
    """Fault: a guided picture that is too large for one pass never runs, or its branches are not of one step."""
    some = Population(budget=3)
    some.add("a", work(tokens=2, branches=2))
    some.add("b", work(tokens=2, branches=1))
    some.scheduler.seat()
    plan = some.scheduler.schedule()
    a = PictureKey("a", 0)
    assert plan.passes == ((BranchKey(a, 0),), (BranchKey(a, 1),))
    assert plan.alone(a) == plan


def test_the_branches_of_a_batch_are_one_pass_and_can_be_taken_apart() -> None:
    """Fault: a rerun of one picture leaves out a branch, or takes along a neighbour's."""
    some = Population()
    some.add("a", work(branches=2))
    some.add("b", work())
    some.scheduler.seat()
    plan = some.scheduler.schedule()
    assert [len(branches) for branches in plan.passes] == [3]
    alone = plan.alone(PictureKey("a", 0))
    assert alone.passes == ((BranchKey(PictureKey("a", 0), 0), BranchKey(PictureKey("a", 0), 1)),)


def test_a_small_request_does_not_wait_for_a_large_one() -> None:
    """Fault: sixteen tokens wait for the four thousand of somebody who came before."""
    some = Population(budget=8)
    some.add("L", work("large", tokens=64, steps=50))
    some.step(10)
    some.add("s", work("small", tokens=1, steps=4))
    assert [some.step() for _ in range(4)] == ["s", "s", "s", "s"]
    assert some.step() == "L"


@pytest.mark.parametrize("sizes", [1, 10**6])
def test_a_large_request_has_its_share_beside_many_small_ones(sizes: int) -> None:
    """Fault: as long as small requests come, a large one takes no step."""
    some = Population()
    some.add("L", work("large", tokens=64, steps=50))
    for index in range(4000):
        some.add(f"{index},", work(index % sizes, tokens=1, steps=1))
        some.step()
        if some.history.count("L") == 10:
            break
    served = sum(entry.count(",") for entry in some.history)
    waiting = 1 if sizes == 1 else 11  # every step of the large one leaves one more of them behind
    assert (some.history.count("L"), served <= 11 * 64 * waiting) == (10, True), served


def test_a_class_that_could_not_run_has_missed_nothing() -> None:
    """Fault: a request that paused, or stood behind another priority, then has the stage to itself."""
    some = Population()
    some.add("a", work("one", steps=90))
    some.add("b", work("two", steps=90))
    some.step(2)
    some.scheduler.set_ready("a", False)
    some.step(20)
    some.scheduler.set_ready("a", True)
    some.step(10)
    assert some.history[-10:].count("a") in (5, 6)


def test_priority_goes_first_and_what_is_left_is_filled() -> None:
    """Fault: a request of less importance takes a turn; one that fits is left out."""
    some = Population()
    some.add("a", work("one"))
    some.add("b", work("two"), priority=-1)
    some.add("c", work("two"), priority=5)
    assert [some.step() for _ in range(5)] == ["bc", "bc", "bc", "bc", "a"]


def test_what_is_not_known_is_ignored() -> None:
    """Fault: a picture whose request was cancelled during its step ends the loop."""
    some = Population()
    some.add("a")
    some.scheduler.seat()
    plan = some.scheduler.schedule()
    some.scheduler.remove("a")
    some.scheduler.remove("nobody")
    assert some.scheduler.advance(plan) == []
    assert not some.scheduler.can_step()


REQUESTS = st.tuples(
    st.sampled_from(["small", "middle", "large"]),
    st.integers(1, 2),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(0, 1),
)
TOKENS = {"small": 1, "middle": 4, "large": 16}


def assert_sound(plan: StepPlan, works: Mapping[PictureKey, PictureWork], budget: int) -> None:
    """Every branch of its pictures once, of one shape, within the budget."""
    rows = [branch for branches in plan.passes for branch in branches]
    assert sorted(rows, key=str) == sorted(
        [BranchKey(key, branch) for key in plan.pictures for branch in range(works[key].branches)], key=str
    )
    for branches in plan.passes:
        cost = sum(works[branch.picture].tokens for branch in branches)
        assert cost <= budget or len(branches) == 1
    assert len(plan.passes) <= 1 or len(plan.pictures) == 1
    assert len({works[key].shape for key in plan.pictures}) <= 1


@settings(max_examples=80)
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 12), REQUESTS), min_size=1, max_size=10),
    cancels=st.dictionaries(st.integers(0, 9), st.integers(0, 30), max_size=3),
    slots=st.integers(1, 6),
    budget=st.integers(1, 24),
    one_timestep=st.booleans(),
)
def test_every_picture_takes_its_steps_and_no_bound_is_passed(
    arrivals: list[tuple[int, tuple[str, int, int, int, int]]],
    cancels: dict[int, int],
    slots: int,
    budget: int,
    one_timestep: bool,
) -> None:
    """Fault: any mix of sizes, steps, branches, priorities, arrivals and cancellations after which a picture has taken other
    steps than its own, a batch mixes what may not meet or exceeds its budget, or nobody runs although somebody could."""
    some = Population(slots, budget, one_timestep=one_timestep)
    taken: dict[PictureKey, list[float]] = {}
    works: dict[PictureKey, PictureWork] = {}
    cancelled: set[str] = set()
    moment = 0
    while moment <= 12 or some.scheduler.can_run():
        for index, (at, (shape, branches, steps, n, priority)) in enumerate(arrivals):
            if at == moment:
                one = work(shape, TOKENS[shape], steps, branches)
                some.add(str(index), *[one] * n, priority=priority)
                works.update({PictureKey(str(index), picture): one for picture in range(n)})
            if cancels.get(index) == moment and at <= moment:
                some.scheduler.remove(str(index))
                cancelled.add(str(index))
        some.scheduler.seat()
        assert some.scheduler.running <= slots
        could = some.scheduler.can_step()
        plan = some.scheduler.schedule()
        assert bool(plan.pictures) == could
        assert_sound(plan, works, budget)
        times = {key: works[key].timesteps[len(taken.get(key, []))] for key in plan.pictures}
        assert not one_timestep or len(set(times.values())) <= 1
        for key, time in times.items():
            taken.setdefault(key, []).append(time)
        for key in some.scheduler.advance(plan):
            if not any(other.request_id == key.request_id for other in some.scheduler._pictures):
                some.scheduler.remove(key.request_id)
        moment += 1
    for key, one in works.items():
        if key.request_id not in cancelled:
            assert taken[key] == list(one.timesteps)


@settings(max_examples=30)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=2, max_size=6),
    one_timestep=st.booleans(),
)
def test_everybody_has_the_same_share_of_the_time(sizes: list[tuple[int, int]], one_timestep: bool) -> None:
    """Fault: any mix of sizes in which one request gets more of the time than another, beyond what one step costs."""
    some = Population(slots=10, budget=10**6, one_timestep=one_timestep)
    tokens = dict(sizes)
    for index, (shape, _) in enumerate(sizes):
        some.add(str(index), work(shape, tokens[shape], steps=300))
    had = dict.fromkeys(map(str, range(len(sizes))), 0)
    most = max(tokens.values())
    for _ in range(300):
        for name in some.step():
            had[name] += tokens[sizes[int(name)][0]]
        assert max(had.values()) - min(had.values()) <= most, had
