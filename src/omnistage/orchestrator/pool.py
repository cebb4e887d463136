"""The replicas of one process, what runs on each, and the choice among them.

A request is placed where fewer than capacity + lookahead requests that precede it are, on the shortest queue, equals in turn, and
stays with its process's replica for all stages that share the process. Younger ones never keep an older one out. Those that wait
for their own callers do not count, up to a bound: their stages let others go first. Knows no clock.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from omnistage.core.payload import PayloadRef
from omnistage.orchestrator.plan import StagePlan
from omnistage.orchestrator.requests import Order

SlotKey = tuple[str, int, int]
"""(request id, attempt, stage id)"""


class WorkerStatus(StrEnum):
    """`restarting` waits for its back-off to end; `down` is for good; `stopped` was asked for."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    SLEEPING = "sleeping"
    STOPPING = "stopping"
    RESTARTING = "restarting"
    DOWN = "down"
    STOPPED = "stopped"


ALIVE = (WorkerStatus.READY, WorkerStatus.DRAINING, WorkerStatus.SLEEPING, WorkerStatus.STOPPING)
"""States in which a replica's reports count."""


@dataclass(slots=True)
class SlotState:
    """A request's place in one stage of a replica, from Submit until the stage has let go of it.

    `held`: refs that were fed and that the stage still reads, by (source, seq).
    """

    request_id: str
    attempt: int
    stage_id: int
    order: Order
    cancelled: bool = False
    held: dict[tuple[int, int], PayloadRef | None] = field(default_factory=dict)

    @property
    def key(self) -> SlotKey:
        return (self.request_id, self.attempt, self.stage_id)


@dataclass(slots=True)
class WorkerState:
    """One replica. `epoch` counts its incarnations, `deaths` are the times of its recent deaths."""

    process: str
    index: int
    epoch: int = 1
    status: WorkerStatus = WorkerStatus.STARTING
    capacity: dict[int, int] = field(default_factory=dict)
    slots: dict[SlotKey, SlotState] = field(default_factory=dict)
    deaths: list[float] = field(default_factory=list)
    reason: str = ""

    @property
    def alive(self) -> bool:
        return self.status in ALIVE

    def reports_for(self, epoch: int) -> bool:
        """True if a report of `epoch` comes from the living."""
        return self.alive and epoch == self.epoch

    def takes(
        self, stage: StagePlan, order: Order, *, bound: bool, alone: bool = False, paused: Container[str] = ()
    ) -> bool:
        """True if a request may be submitted here; a `bound` one is here already and may go on while the replica drains, one
        that is to be `alone` joins none that precede it. Those that are `paused` take no place, but for every place there are
        only so many of them."""
        if self.status is not WorkerStatus.READY and not (bound and self.status is WorkerStatus.DRAINING):
            return False
        if alone and any(slot.order < order for slot in self.slots.values()):
            return False
        here = (slot for slot in self.slots.values() if slot.stage_id == stage.stage_id)
        before = [slot.request_id for slot in here if slot.order < order]
        waiting = sum(request_id in paused for request_id in before)
        places = self.places(stage)
        return len(before) - min(waiting, places * stage.paused_per_place) < places

    def places(self, stage: StagePlan) -> int:
        """How many requests that precede another and wait for no caller may be here when that comes."""
        return self.capacity.get(stage.stage_id, stage.max_num_seqs) + stage.lookahead


class StagePool:
    """The replicas of one process. `_turn` is the index that comes first among equals."""

    def __init__(self, process: str, num_replicas: int) -> None:
        self.process = process
        self.workers: Sequence[WorkerState] = tuple(WorkerState(process, index) for index in range(num_replicas))
        self._turn = 0

    @property
    def lost(self) -> bool:
        """True if no replica will ever serve again."""
        return all(worker.status in (WorkerStatus.DOWN, WorkerStatus.STOPPED) for worker in self.workers)

    @property
    def reason(self) -> str:
        """Why it is lost."""
        return next((worker.reason for worker in self.workers if worker.reason), "it was stopped")

    def find(self, index: int) -> WorkerState | None:
        return self.workers[index] if 0 <= index < len(self.workers) else None

    def choose(
        self,
        stage: StagePlan,
        order: Order,
        bound: int | None,
        *,
        alone: bool = False,
        paused: Container[str] = (),
    ) -> WorkerState | None:
        """The replica for a request, or None while there is no place; `bound` is the one it already uses."""
        if bound is not None:
            worker = self.workers[bound]
            return worker if worker.takes(stage, order, bound=True, alone=alone, paused=paused) else None
        takers = [
            worker for worker in self.workers if worker.takes(stage, order, bound=False, alone=alone, paused=paused)
        ]
        count = len(self.workers)
        chosen = min(takers, key=lambda worker: (len(worker.slots), (worker.index - self._turn) % count), default=None)
        if chosen is not None:
            self._turn = (chosen.index + 1) % count
        return chosen
