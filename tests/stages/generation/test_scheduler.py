"""The policy of generation stages: slots by the one order, batches by key and budget.

Faults pinned: a younger request keeps an older one out of a slot or a batch; an older one is parked for a younger; a
request that waits takes a turn; inputs that do not fit together share a batch; one large input never runs.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.stages.generation.scheduler import GenerationScheduler, Work


def scheduler_of(*requests: str, slots: int = 2, budget: int = 10) -> GenerationScheduler:
    """Requests in order of age, all with an input."""
    scheduler = GenerationScheduler(slots=slots, budget=budget)
    for age, request_id in enumerate(requests):
        scheduler.add(request_id, (0, age))
        scheduler.set_input(request_id, True)
    return scheduler


def batch_of(scheduler: GenerationScheduler, **work: tuple[int, object]) -> tuple[str, ...]:
    scheduler.seat()
    return scheduler.form_batch({name: Work(*unit) for name, unit in work.items()})


def test_equal_keys_share_a_batch_within_the_budget() -> None:
    """Fault: a step longer than its budget, or a batch of things that do not fit together."""
    scheduler = scheduler_of("a", "b", "c", "d", slots=4, budget=10)
    assert batch_of(scheduler, a=(4, "x"), b=(3, "y"), c=(7, "x"), d=(6, "x")) == ("a", "d")


def test_a_key_of_none_runs_alone_and_so_does_what_exceeds_the_budget() -> None:
    """Fault: inputs that may not be batched are, or one larger than the budget waits for ever."""
    scheduler = scheduler_of("a", "b")
    assert batch_of(scheduler, a=(1, None), b=(1, None)) == ("a",)
    assert batch_of(scheduler, a=(99, "x"), b=(1, "x")) == ("a",)


def test_what_is_not_known_is_ignored_and_nothing_to_do_is_an_empty_batch() -> None:
    """Fault: late news of a request that has ended raises."""
    scheduler = scheduler_of()
    scheduler.set_ready("gone", False)
    scheduler.set_input("gone", True)
    scheduler.remove("gone")
    assert not scheduler.can_run()
    assert batch_of(scheduler) == ()


@given(data=st.data(), slots=st.integers(1, 3), budget=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_the_oldest_that_can_always_runs_and_every_bound_holds(data: st.DataObject, slots: int, budget: int) -> None:
    """Fault: any sequence of arrivals, waits and ends after which the oldest able request is not in the batch."""
    scheduler = GenerationScheduler(slots=slots, budget=budget)
    orders = {}
    able: dict[str, tuple[bool, bool]] = {}
    seated: set[str] = set()
    for name in data.draw(st.permutations("abcdef")):
        orders[name] = (data.draw(st.integers(0, 1)), ord(name))
        scheduler.add(name, orders[name])
        able[name] = (True, False)
        for other in data.draw(st.lists(st.sampled_from(sorted(able)), max_size=3)):
            able[other] = (data.draw(st.booleans()), data.draw(st.booleans()))
            scheduler.set_ready(other, able[other][0])
            scheduler.set_input(other, able[other][1])
        could = scheduler.can_run()
        seating = scheduler.seat()
        for parked in seating.parked:
            assert not able[parked][0] or any(orders[taker] < orders[parked] for taker in seating.seated)
        seated = (seated | set(seating.seated)) - set(seating.parked)
        assert len(seated) == scheduler.running <= slots
        work = {name: Work(data.draw(st.integers(1, 4)), data.draw(st.sampled_from([None, 1, 2]))) for name in able}
        batch = scheduler.form_batch(work)
        assert bool(batch) == could
        waiting_older = [name for name in seated if all(able[name]) is False]
        runnable = sorted((name for name in able if all(able[name])), key=orders.__getitem__)
        if runnable and sum(orders[name] < orders[runnable[0]] for name in waiting_older) < slots:
            assert batch[0] == runnable[0]
        assert list(batch) == sorted(batch, key=orders.__getitem__)
        assert len(batch) <= 1 or sum(work[name].cost for name in batch) <= budget
        assert len(batch) <= 1 or {work[name].key for name in batch} in ({1}, {2})
