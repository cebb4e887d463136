"""Which pictures take their next denoising step together: policy without tensors, without torch, without the model.

Slots are given by the one total order (stages.seats). The pictures of a request that holds one take steps: those whose tensors have
equal shapes, in one batch, each at its own timestep (where the model takes one timestep, those at the same). Whoever cannot be in
a batch waits for another one, and why is counted.

Turns (weighted fair queueing). Pictures of one size are a *class*; so is a single request where the model takes one timestep. A
step costs its class the step's tokens, shared by the class's requests. Of the classes that hold requests of the best priority the
one goes next that would have had least after its step: in the long run every request has the same share of the time whatever the
size of its pictures, and a small one does not wait for a large one. A class that is new, or did not compete, begins with what those
that did have had on average: it owes nothing and is owed nothing, so that nobody starves while others come and go.
Inside a class every other step goes to a request that has not begun, else to the one that has least left: so a newcomer waits for
two steps, and the mean one has its pictures sooner than in the order of arrival. The steps between go to the oldest, which nobody
can keep from its end that way. What `budget` (tokens of all branches of all pictures) leaves is filled in the order that led. A
picture whose branches exceed it runs alone, its branches in as many passes as it takes; a single branch may exceed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from omnistage.stages.diffusion.plan import BranchKey, PictureKey, StepPlan
from omnistage.stages.seats import Order, Seats

SHAPE, TIMESTEP, BUDGET = "shape", "timestep", "budget"
"""Why a picture was not in a step that others took."""


@dataclass(frozen=True, slots=True)
class PictureWork:
    """What the scheduler has to know of a picture: `shape` says which others it may share a batch with, `tokens` are of one
    branch, `timesteps` one per step."""

    shape: Hashable
    tokens: int
    branches: int
    timesteps: Sequence[float]


@dataclass(slots=True)
class PictureState:
    """A picture that has steps to take. `order`: that of its request."""

    key: PictureKey
    order: Order
    work: PictureWork
    turn: Hashable
    step: int = 0

    @property
    def cost(self) -> int:
        return self.work.tokens * self.work.branches

    @property
    def left(self) -> int:
        """Tokens of all steps that are still to be taken."""
        return (len(self.work.timesteps) - self.step) * self.cost

    @property
    def timestep(self) -> float:
        return self.work.timesteps[self.step]


@dataclass(slots=True)
class TurnsState:
    """What each class has had, in tokens per request, and `even`: what it would have had if all had had the same."""

    had: dict[Hashable, float] = field(default_factory=dict)
    even: float = 0.0

    def keep(self, classes: Iterable[Hashable], competing: Container[Hashable]) -> None:
        """Forgets all but `classes`. Those that do not compete miss nothing; new ones begin at `even`."""
        self.had = {
            name: self.had[name] if name in competing and name in self.had else max(self.had.get(name, 0.0), self.even)
            for name in classes
        }

    def next(self, costs: Mapping[Hashable, int]) -> Hashable:
        """The one that would have had least after a step at its cost, of equals the first."""
        return min(costs, key=lambda name: self.had[name] + costs[name])

    def charge(self, costs: Mapping[Hashable, float], evenly: float) -> None:
        """Each class pays for its part of a step; `evenly`: what it came to for each of all competing requests."""
        for name, cost in costs.items():
            self.had[name] += cost
        self.even += evenly


class DiffusionScheduler(Seats):
    """See the module. All calls about unknown requests are no-ops."""

    def __init__(self, *, slots: int, budget: int, one_timestep: bool = False) -> None:
        super().__init__(slots)
        self._budget = budget
        self._one_timestep = one_timestep
        self._pictures: dict[PictureKey, PictureState] = {}
        self._begun: set[str] = set()
        self._turns = TurnsState()
        self._gave_way: set[Hashable] = set()  # classes whose last step was led by another request than the oldest
        self.apart: Counter[str] = Counter({SHAPE: 0, TIMESTEP: 0, BUDGET: 0})

    def begin(self, request_id: str, order: Order, works: Sequence[PictureWork]) -> None:
        """The pictures of a request may take steps from now on."""
        for index, work in enumerate(works):
            key = PictureKey(request_id, index)
            turn = (work.shape, request_id) if self._one_timestep else work.shape
            self._pictures[key] = PictureState(key, order, work, turn)

    def remove(self, request_id: str) -> None:
        super().remove(request_id)
        self._begun.discard(request_id)
        for key in [key for key in self._pictures if key.request_id == request_id]:
            del self._pictures[key]

    def can_step(self) -> bool:
        """Whether `schedule` would find somebody."""
        able = set(self.candidates())
        return any(key.request_id in able for key in self._pictures)

    def schedule(self) -> StepPlan:
        """The next step; an empty one where nobody can take one."""
        able = self._able()
        if not able:
            return StepPlan()
        turn = self._next_turn(able)
        line = able if turn in self._gave_way else self._new_and_short_first(able)
        lead = next(picture for picture in line if picture.turn == turn)
        batch = self._filled(lead, line)
        self._charge(batch, able)
        self._note_lead(lead, next(picture for picture in able if picture.turn == turn))
        self._count_apart(lead, batch, able)
        return self._planned(batch)

    def advance(self, plan: StepPlan) -> list[PictureKey]:
        """The pictures of a step that was taken are one further; those that have taken their last, which are forgotten."""
        ended: list[PictureKey] = []
        for key in plan.pictures:
            picture = self._pictures.get(key)
            if picture is None:
                continue
            self._begun.add(key.request_id)
            picture.step += 1
            if picture.step == len(picture.work.timesteps):
                del self._pictures[key]
                ended.append(key)
        return ended

    def _able(self) -> list[PictureState]:
        """Pictures whose requests hold a slot and can run, in the total order."""
        can_run = set(self.candidates())
        able = [picture for key, picture in self._pictures.items() if key.request_id in can_run]
        return sorted(able, key=lambda picture: (picture.order, picture.key.index))

    def _next_turn(self, able: list[PictureState]) -> Hashable:
        classes = {picture.turn for picture in self._pictures.values()}
        costs: dict[Hashable, int] = {}
        for picture in able:
            if picture.order[0] == able[0].order[0]:
                costs.setdefault(picture.turn, picture.cost)
        self._turns.keep(classes, costs)
        self._gave_way &= classes
        return self._turns.next(costs)

    def _new_and_short_first(self, able: list[PictureState]) -> list[PictureState]:
        """By priority; the oldest that has not begun before those that have, which go by what their requests have left."""
        left: Counter[str] = Counter()
        for picture in able:
            left[picture.key.request_id] += picture.left

        def place(picture: PictureState) -> tuple[int, bool, int]:
            has_begun = self._has_begun(picture)
            return picture.order[0], has_begun, left[picture.key.request_id] if has_begun else 0

        return sorted(able, key=place)

    def _has_begun(self, picture: PictureState) -> bool:
        return picture.key.request_id in self._begun or picture.key.index > 0

    def _note_lead(self, lead: PictureState, oldest: PictureState) -> None:
        if lead is oldest:
            self._gave_way.discard(lead.turn)
        else:
            self._gave_way.add(lead.turn)

    def _filled(self, lead: PictureState, line: list[PictureState]) -> list[PictureState]:
        batch = [lead]
        left = self._budget - lead.cost
        for picture in line:
            if picture is not lead and picture.cost <= left and self._apart(lead, picture) is None:
                batch.append(picture)
                left -= picture.cost
        return batch

    def _apart(self, lead: PictureState, picture: PictureState) -> str | None:
        """Why the two cannot share a batch."""
        if picture.work.shape != lead.work.shape:
            return SHAPE
        return TIMESTEP if self._one_timestep and picture.timestep != lead.timestep else None

    def _charge(self, batch: list[PictureState], able: list[PictureState]) -> None:
        requests: dict[Hashable, set[str]] = {}
        for picture in self._pictures.values():
            requests.setdefault(picture.turn, set()).add(picture.key.request_id)
        costs: dict[Hashable, float] = {}
        for picture in batch:
            costs[picture.turn] = costs.get(picture.turn, 0.0) + picture.cost / len(requests[picture.turn])
        competing = {picture.key.request_id for picture in able if picture.order[0] == able[0].order[0]}
        self._turns.charge(costs, sum(picture.cost for picture in batch) / len(competing))

    def _count_apart(self, lead: PictureState, batch: list[PictureState], able: list[PictureState]) -> None:
        taken = {picture.key for picture in batch}
        for picture in able:
            if picture.key not in taken:
                self.apart[self._apart(lead, picture) or BUDGET] += 1

    def _planned(self, batch: list[PictureState]) -> StepPlan:
        branches = [BranchKey(one.key, branch) for one in batch for branch in range(one.work.branches)]
        size = len(branches) if len(batch) > 1 else max(1, self._budget // max(1, batch[0].work.tokens))
        passes = [tuple(branches[start : start + size]) for start in range(0, len(branches), size)]
        return StepPlan(tuple(picture.key for picture in batch), tuple(passes))
