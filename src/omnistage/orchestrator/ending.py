"""How a request ends, or begins again: one terminal state for the caller at once, cancels for exactly the stages that run.

Slots and what was fed to them return later (CancelDone, ReplicaDown); what the machine itself holds is released here.
All open requests of a group end together.
"""

from __future__ import annotations

from omnistage.core.errors import (
    ClientTooSlowError,
    ErrorInfo,
    InvalidRequestError,
    RequestAbortedError,
    RequestTimeoutError,
    StageFailedError,
    StageUnavailableError,
)
from omnistage.orchestrator.requests import AttemptState, RequestState, RunStatus
from omnistage.orchestrator.state import MachineState
from omnistage.orchestrator.timers import RequestDeadline, StallDeadline
from omnistage.wire.messages import CLIENT, Close, Outcome, Restarted

MOST_DEATHS = 2
"""A request present at this many worker deaths may be their cause and is not run again."""

UNHEARD_ITEMS = 4
"""As many items of a dying replica may have been on their way."""


def members(state: MachineState, request: RequestState) -> list[RequestState]:
    """The open requests that end with this one, itself included."""
    group = request.request.group_id
    if group is None:
        return [request]
    return [other for other in state.requests.values() if other.request.group_id == group]


def end(state: MachineState, request: RequestState, outcome: Outcome, error: ErrorInfo | None = None) -> None:
    for member in members(state, request):
        _close(state, member, outcome, error)


def finish_if_complete(state: MachineState, request: RequestState) -> None:
    """The last open stage has ended, or the last held item was handed over."""
    if all(member.attempt.complete for member in members(state, request)):
        end(state, request, "finished")


def fail(state: MachineState, request: RequestState, message: str, stage_id: int) -> None:
    """The pipeline broke its word to this request."""
    stage = None if stage_id == CLIENT else state.plan(stage_id).name
    end(state, request, "failed", ErrorInfo(StageFailedError.code, message, stage=stage))


def abort(state: MachineState, request: RequestState, reason: str) -> None:
    end(state, request, "aborted", ErrorInfo(RequestAbortedError.code, reason))


def time_out(state: MachineState, request_id: str) -> None:
    """The request's deadline has passed."""
    request = state.requests[request_id]
    open_stages = [
        state.plan(stage).name
        for stage, status in request.attempt.runs.items()
        if status in (RunStatus.WAITING, RunStatus.RUNNING)
    ]
    message = f"the request did not end in time; open stages: {', '.join(open_stages) or 'none'}"
    end(state, request, "timed_out", ErrorInfo(RequestTimeoutError.code, message))


def end_stalled(state: MachineState, request_id: str) -> None:
    """The caller has taken nothing for too long."""
    seconds = state.config.limits.client_stall_s
    message = f"nothing was taken for {seconds:g} s while output was waiting"
    end(state, state.requests[request_id], "failed", ErrorInfo(ClientTooSlowError.code, message))


def reject_append(state: MachineState, request: RequestState, seq: int, expected: int) -> None:
    """Appended input that is not the next."""
    error = InvalidRequestError.of("seq", seq, f"{expected}, and nothing after the last input")
    end(state, request, "failed", ErrorInfo.of(error))


def unavailable(state: MachineState, process: str) -> ErrorInfo:
    """The error of a request that needs a process none of whose replicas will serve again."""
    names = ", ".join(stage.name for stage in state.config.stages_of(process))
    return ErrorInfo(
        StageUnavailableError.code,
        f"{names} is down: {state.pools[process].reason}",
        stage=names,
        retry_after_s=state.config.limits.retry_after_s,
    )


def lose(state: MachineState, request: RequestState, process: str, reason: str) -> None:
    """A replica has died under this request: it begins again where that is safe, or fails."""
    request.deaths += 1
    names = ", ".join(stage.name for stage in state.config.stages_of(process))
    if request.deaths >= MOST_DEATHS:
        message = (
            f"{names} died ({reason}); the request was present at {request.deaths} such deaths and is not run again"
        )
    elif not request.replayable:
        message = f"{names} died ({reason}) when the request could no longer begin again"
    else:
        state.suspect(request, process)
        _replay(state, request)
        return
    end(state, request, "failed", ErrorInfo(StageFailedError.code, message, stage=names))


def clear_if_past(state: MachineState, request: RequestState) -> None:
    """A run that got further than the one which ended with its replica is not why it died. Some items of the earlier run may
    have died unheard, so a little further does not count."""
    suspicion = request.suspicion
    if suspicion is None:
        return
    ended = all(
        request.attempt.runs.get(stage.stage_id, RunStatus.ENDED) is RunStatus.ENDED
        for stage in state.config.stages_of(suspicion.process)
    )
    if ended or state.said(request, suspicion.process) > suspicion.said + UNHEARD_ITEMS:
        state.clear(request)


def _replay(state: MachineState, request: RequestState) -> None:
    """Attempt n is cancelled everywhere; n+1 starts from the admitted inputs at once, as messages carry the attempt."""
    _tear_down(state, request)
    number = request.attempt.number + 1
    request.attempt = AttemptState.of(number, request.graph, state.config.limits.client_window_nbytes)
    state.tell(Restarted(request_id=request.request_id, attempt=number))
    for stage_id in request.graph.entries:
        state.enqueue(request, stage_id)


def _close(state: MachineState, request: RequestState, outcome: Outcome, error: ErrorInfo | None) -> None:
    attempt = request.attempt
    del state.requests[request.request_id]
    state.clear(request)
    state.timers.clear(RequestDeadline(request.request_id))
    state.tell(
        Close(
            request_id=request.request_id,
            outcome=outcome,
            error=error,
            usage=attempt.usage,
            times=attempt.times,
            reasons=attempt.reasons,
            attempts=attempt.number,
        )
    )
    _tear_down(state, request)


def _tear_down(state: MachineState, request: RequestState) -> None:
    """Takes the current attempt out of every queue and stage, and lets go of what the machine holds for it."""
    attempt = request.attempt
    for stage_id, status in attempt.runs.items():
        if status is RunStatus.WAITING:
            state.dequeue(request, stage_id)
        elif status is RunStatus.RUNNING:
            worker = state.worker_of(request, stage_id)
            slot = worker.slots.get((request.request_id, attempt.number, stage_id))
            if slot is not None:  # it died with its replica otherwise
                state.cancel(worker, slot)
    for edge in attempt.edges.values():
        for item in edge.take_backlog():
            state.refs.drop(item.ref)
    for ref in attempt.client.refs():
        state.refs.drop(ref)
    state.timers.clear(StallDeadline(request.request_id))
    state.resume(request)
