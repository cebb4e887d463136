"""Replicas: started, up, dead, restarted after a growing pause, given up after too many deaths, stopped.

What a death means for requests is decided in `ending`; here they are only found. Start timeouts are the supervisor's.
"""

from __future__ import annotations

from omnistage.orchestrator import control
from omnistage.orchestrator.ending import end, lose, unavailable
from omnistage.orchestrator.pool import WorkerState, WorkerStatus
from omnistage.orchestrator.requests import RequestState, RunStatus
from omnistage.orchestrator.state import MachineState, Phase
from omnistage.orchestrator.timers import CancelDeadline, DrainDeadline, RestartTime
from omnistage.wire.messages import ReplicaDown, ReplicaState, ReplicaUp, StartReplica, StopReplica

SETTLED = (WorkerStatus.DOWN, WorkerStatus.STOPPED, WorkerStatus.RESTARTING)
"""States in which there is no process."""


def start_all(state: MachineState) -> None:
    for worker in state.workers():
        _start(state, worker)


def up(state: MachineState, event: ReplicaUp) -> None:
    """A replica is ready; one that was meanwhile told to stop stays out."""
    worker = state.worker(event.process, event.replica)
    if worker is None or event.epoch != worker.epoch or worker.status is not WorkerStatus.STARTING:
        return
    worker.status = WorkerStatus.READY
    worker.capacity = dict(event.capacity)
    worker.reason = ""
    state.unsettle(worker.process)


def changed(state: MachineState, event: ReplicaState) -> None:
    """A replica drains, sleeps, or is active again."""
    worker = state.worker(event.process, event.replica)
    if worker is None or not worker.reports_for(event.epoch) or worker.status is WorkerStatus.STOPPING:
        return
    match event.state:
        case "active":
            worker.status = WorkerStatus.READY
        case "draining":
            worker.status = WorkerStatus.DRAINING
        case "sleeping":
            worker.status = WorkerStatus.SLEEPING
    state.unsettle(worker.process)


def down(state: MachineState, event: ReplicaDown) -> None:
    """A replica is gone: its slots and what was fed to them are free, its requests begin again or fail."""
    worker = state.worker(event.process, event.replica)
    if worker is None or event.epoch != worker.epoch or worker.status in SETTLED:
        return
    present = _present(state, worker)
    worker.reason = event.reason
    _bury(state, worker)
    for slot in list(worker.slots.values()):
        state.free(worker, slot)
    control.lost(state, worker)
    if state.pools[worker.process].lost:
        end_all_that_need(state, worker.process)
    for request in present:
        if request.request_id in state.requests:
            lose(state, request, worker.process, event.reason)


def restart(state: MachineState, timer: RestartTime) -> None:
    """The pause after a death is over."""
    worker = state.pools[timer.process].workers[timer.replica]
    worker.epoch += 1
    worker.status = WorkerStatus.STARTING
    _start(state, worker)


def cancel_overdue(state: MachineState, timer: CancelDeadline) -> None:
    """A replica that does not answer a cancel is stuck; its death returns everything."""
    worker = state.pools[timer.process].workers[timer.replica]
    if worker.status is WorkerStatus.STOPPING:
        return  # it was told already, and the supervisor sees to it
    _stop(state, worker, kill=True)


def stop_all(state: MachineState) -> None:
    """The end of a shutdown; the supervisor brings it about."""
    state.phase = Phase.STOPPED
    state.timers.clear(DrainDeadline())
    for worker in state.workers():
        if worker.status in SETTLED:
            state.timers.clear(RestartTime(worker.process, worker.index))
            worker.status = WorkerStatus.STOPPED
        elif worker.status is not WorkerStatus.STOPPING:
            _stop(state, worker, kill=False)


def end_all_that_need(state: MachineState, process: str) -> None:
    """No replica of a process will serve again: what still needs it fails with the reason."""
    for request in list(state.requests.values()):
        if request.request_id in state.requests and _needs(state, request, process):
            end(state, request, "failed", unavailable(state, process))


def _present(state: MachineState, worker: WorkerState) -> list[RequestState]:
    """The open requests that a death concerns, in their order: placed here, with a stage of this process not yet ended."""
    concerned = [
        request
        for request in state.requests.values()
        if request.attempt.places.get(worker.process) == worker.index and _needs(state, request, worker.process)
    ]
    return sorted(concerned, key=lambda request: request.order)


def _needs(state: MachineState, request: RequestState, process: str) -> bool:
    return any(
        status is not RunStatus.ENDED and state.plan(stage_id).process == process
        for stage_id, status in request.attempt.runs.items()
    )


def _bury(state: MachineState, worker: WorkerState) -> None:
    """Decides whether a dead replica comes back, and when."""
    limits = state.config.limits
    if state.phase is Phase.STOPPED:
        worker.status = WorkerStatus.STOPPED
        return
    recent = [time for time in worker.deaths if time > state.now - limits.strike_window_s]
    worker.deaths = [*recent, state.now]
    if len(worker.deaths) >= limits.strikes:
        worker.status = WorkerStatus.DOWN
        return
    worker.status = WorkerStatus.RESTARTING
    pause = min(limits.restart_first_s * 2 ** (len(worker.deaths) - 1), limits.restart_most_s)
    state.timers.set(RestartTime(worker.process, worker.index), state.now + pause)


def _start(state: MachineState, worker: WorkerState) -> None:
    state.tell(StartReplica(process=worker.process, replica=worker.index, epoch=worker.epoch))


def _stop(state: MachineState, worker: WorkerState, *, kill: bool) -> None:
    worker.status = WorkerStatus.STOPPING
    state.tell(StopReplica(process=worker.process, replica=worker.index, epoch=worker.epoch, kill=kill))
