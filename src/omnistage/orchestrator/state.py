"""The machine's tables in one place, the small operations on them, and the commands gathered while one event is handled.

Only ordered containers, so that the same events give the same commands. Decides nothing about requests or replicas.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from omnistage.core.errors import ErrorInfo
from omnistage.orchestrator.edges import EdgeState
from omnistage.orchestrator.plan import OrchestratorConfig, StagePlan
from omnistage.orchestrator.pool import SlotState, StagePool, WorkerState
from omnistage.orchestrator.refs import RefState
from omnistage.orchestrator.requests import Order, RequestState, RunStatus, Suspicion
from omnistage.orchestrator.timers import CancelDeadline, TimerState
from omnistage.wire.messages import CLIENT, Cancel, Command, Grant, WakeAt


class Phase(StrEnum):
    """How the machine as a whole stands: requests are admitted only while it serves."""

    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(slots=True)
class CallState:
    """A control call. `awaited`: (stage id, replica) of the answers still to come; `results` by "stage_id/replica"."""

    awaited: dict[tuple[int, int], None]
    results: dict[str, Any] = field(default_factory=dict)
    error: ErrorInfo | None = None


class MachineState:
    """`waiting`: per stage, the requests not yet submitted to it, in the total order. `unsettled`: stages whose queue may move.
    `suspects`: per process, the open requests with a suspicion there. `paused`: open requests that wait for their callers."""

    def __init__(self, config: OrchestratorConfig) -> None:
        self.config = config
        self.now = 0.0
        self.phase = Phase.SERVING
        self.arrivals = 0
        self.duplicate_arrivals = 0
        self.window_overruns = 0
        self.requests: dict[str, RequestState] = {}
        self.paused: dict[str, None] = {}
        self.suspects: dict[str, dict[str, Order]] = {process: {} for process in config.processes}
        self.pools = {process: StagePool(process, count) for process, count in config.processes.items()}
        self.waiting: dict[int, list[tuple[Order, str]]] = {stage.stage_id: [] for stage in config.stages}
        self.unsettled: dict[int, None] = {}
        self.calls: dict[str, CallState] = {}
        self.timers = TimerState()
        self.refs = RefState()
        self._plans: dict[int, StagePlan] = {stage.stage_id: stage for stage in config.stages}
        self._commands: list[Command] = []
        self._armed: float | None = None

    # ---- commands

    def tell(self, command: Command) -> None:
        self._commands.append(command)

    def forget_alarm(self) -> None:
        """The shell's timer has gone off."""
        self._armed = None

    def take_commands(self) -> list[Command]:
        """Ends an event: what was told, then the releases that are due, then the alarm if its time has changed."""
        commands = [*self._commands, *self.refs.flush()]
        self._commands.clear()
        earliest = self.timers.earliest()
        if earliest is not None and earliest != self._armed:
            self._armed = earliest
            commands.append(WakeAt(time=earliest))
        return commands

    # ---- look-ups

    def plan(self, stage_id: int) -> StagePlan:
        return self._plans[stage_id]

    def pool_of(self, stage_id: int) -> StagePool:
        return self.pools[self.plan(stage_id).process]

    def worker(self, process: str, index: int) -> WorkerState | None:
        """None for a process or an index that does not exist."""
        pool = self.pools.get(process)
        return pool.find(index) if pool else None

    def workers(self) -> list[WorkerState]:
        return [worker for pool in self.pools.values() for worker in pool.workers]

    def worker_of(self, request: RequestState, stage_id: int) -> WorkerState:
        """Where a stage of the current attempt runs or ran."""
        pool = self.pool_of(stage_id)
        return pool.workers[request.attempt.places[pool.process]]

    def slot_of(self, request: RequestState, stage_id: int) -> SlotState:
        """The slot of a running stage."""
        return self.worker_of(request, stage_id).slots[request.request_id, request.attempt.number, stage_id]

    def queued(self) -> int:
        """Requests no stage has seen yet."""
        return sum(not request.started for request in self.requests.values())

    # ---- waiting and slots

    def enqueue(self, request: RequestState, stage_id: int) -> None:
        """The stage is wanted now; it is submitted when there is a place."""
        request.attempt.runs[stage_id] = RunStatus.WAITING
        insort(self.waiting[stage_id], (request.order, request.request_id))
        self.unsettled[stage_id] = None

    def dequeue(self, request: RequestState, stage_id: int) -> None:
        self.waiting[stage_id].remove((request.order, request.request_id))

    def unsettle(self, process: str) -> None:
        """Something changed about the replicas of `process`."""
        for stage in self.config.stages_of(process):
            self.unsettled[stage.stage_id] = None

    def cancel(self, worker: WorkerState, slot: SlotState) -> None:
        """Asks a stage to let go; the slot and its refs return with the answer or with the replica's death."""
        slot.cancelled = True
        deadline = self.now + self.plan(slot.stage_id).cancel_timeout_s
        self.timers.set(_cancel_deadline(worker, slot), deadline)
        self.tell(
            Cancel(
                process=worker.process,
                replica=worker.index,
                epoch=worker.epoch,
                request_id=slot.request_id,
                attempt=slot.attempt,
                stage_id=slot.stage_id,
            )
        )

    def free(self, worker: WorkerState, slot: SlotState) -> None:
        """The stage holds nothing of the request any more."""
        del worker.slots[slot.key]
        self.timers.clear(_cancel_deadline(worker, slot))
        for ref in slot.held.values():
            self.refs.drop(ref)
        slot.held.clear()
        self.unsettled[slot.stage_id] = None
        if self.suspects[worker.process]:  # one of them may wait, in any stage, until those before it have gone
            self.unsettle(worker.process)

    # ---- callers

    def pause(self, request: RequestState) -> None:
        """The caller is to take something first; meanwhile others go first."""
        if request.request_id not in self.paused:
            self.paused[request.request_id] = None
            for process in request.attempt.places:
                self.unsettle(process)

    def resume(self, request: RequestState) -> None:
        """It has taken something, or there is nothing to take any more."""
        self.paused.pop(request.request_id, None)

    # ---- suspicion

    def suspect(self, request: RequestState, process: str) -> None:
        """The request runs again and may kill again; until it is clear it runs alone."""
        request.suspicion = Suspicion(process, self.said(request, process))
        self.suspects[process][request.request_id] = request.order

    def clear(self, request: RequestState) -> None:
        """It has ended, or got further than where its replica died: others may share a replica with it."""
        if request.suspicion is not None:
            del self.suspects[request.suspicion.process][request.request_id]
            self.unsettle(request.suspicion.process)
            request.suspicion = None

    def first_suspect(self, process: str) -> Order | None:
        """The place of the oldest of them."""
        return min(self.suspects[process].values(), default=None)

    def said(self, request: RequestState, process: str) -> int:
        """Items of the current attempt that have come from the stages of `process`."""
        edges = request.attempt.edges.values()
        return sum(edge.next_seq for edge in edges if self._is_in(edge.plan.source, process))

    def _is_in(self, stage_id: int, process: str) -> bool:
        return stage_id != CLIENT and self.plan(stage_id).process == process

    # ---- credit

    def grant(self, request: RequestState, edge: EdgeState, credits: int) -> None:
        """Credit back to the source of an edge. One that has sent its last item, or has no window, needs none; any other
        still runs, for a stage that ends before its last item has failed its request."""
        source = edge.plan.source
        if credits == 0 or edge.ended or not edge.plan.windowed or source == CLIENT:
            return
        worker = self.worker_of(request, source)
        self.tell(
            Grant(
                process=worker.process,
                replica=worker.index,
                epoch=worker.epoch,
                request_id=request.request_id,
                attempt=request.attempt.number,
                source=source,
                target=edge.plan.target,
                credits=credits,
            )
        )


def _cancel_deadline(worker: WorkerState, slot: SlotState) -> CancelDeadline:
    return CancelDeadline(worker.process, worker.index, slot.request_id, slot.attempt, slot.stage_id)
