"""Control calls: one Control per live replica of each named stage, gathered into one reply. They never wait for requests."""

from __future__ import annotations

from omnistage.core.errors import ErrorInfo, InvalidRequestError, RequestTimeoutError, StageUnavailableError
from omnistage.orchestrator.pool import WorkerState
from omnistage.orchestrator.state import CallState, MachineState
from omnistage.orchestrator.timers import CallDeadline
from omnistage.wire.messages import Control, ControlCalled, ControlDone, ControlReply


def called(state: MachineState, event: ControlCalled) -> None:
    """Asks every live replica of the stages; a stage without one makes the reply an error. An id in use is dropped."""
    if event.call_id in state.calls:
        return
    known = tuple(stage.stage_id for stage in state.config.stages)
    stage_ids = tuple(dict.fromkeys(event.stage_ids or known))
    unknown = [stage_id for stage_id in stage_ids if stage_id not in known]
    if unknown:
        error = ErrorInfo.of(InvalidRequestError.of("stage_ids", unknown, str(list(known))))
        state.tell(ControlReply(call_id=event.call_id, error=error))
        return
    call = CallState(awaited={})
    state.calls[event.call_id] = call
    state.timers.set(CallDeadline(event.call_id), state.now + event.timeout_s)
    for stage_id in stage_ids:
        workers = [worker for worker in state.pool_of(stage_id).workers if worker.alive]
        if not workers:
            _note(call, _unavailable(state, stage_id, "no replica is up"))
        for worker in workers:
            _ask(state, call, worker, stage_id, event)
    _reply_if_complete(state, event.call_id)


def answered(state: MachineState, worker: WorkerState, event: ControlDone) -> None:
    """One stage of one replica has answered."""
    call = state.calls.get(event.call_id)
    key = (event.stage_id, worker.index)
    if call is None or key not in call.awaited:
        return
    del call.awaited[key]
    call.results[f"{event.stage_id}/{worker.index}"] = event.result
    _note(call, event.error)
    _reply_if_complete(state, event.call_id)


def lost(state: MachineState, worker: WorkerState) -> None:
    """A replica has died and answers nothing any more."""
    stage_ids = {stage.stage_id for stage in state.config.stages_of(worker.process)}
    for call_id, call in list(state.calls.items()):
        for stage_id, index in list(call.awaited):
            if index == worker.index and stage_id in stage_ids:
                del call.awaited[stage_id, index]
                _note(call, _unavailable(state, stage_id, worker.reason))
        _reply_if_complete(state, call_id)


def time_out(state: MachineState, call_id: str) -> None:
    """The reply goes out with what there is."""
    call = state.calls[call_id]
    missing = ", ".join(f"{stage_id}/{index}" for stage_id, index in call.awaited)
    call.awaited.clear()
    _note(call, ErrorInfo(RequestTimeoutError.code, f"no answer in time from {missing}"))
    _reply_if_complete(state, call_id)


def _ask(state: MachineState, call: CallState, worker: WorkerState, stage_id: int, event: ControlCalled) -> None:
    call.awaited[stage_id, worker.index] = None
    state.tell(
        Control(
            process=worker.process,
            replica=worker.index,
            epoch=worker.epoch,
            call_id=event.call_id,
            stage_id=stage_id,
            name=event.name,
            arguments=event.arguments,
        )
    )


def _note(call: CallState, error: ErrorInfo | None) -> None:
    """The first error is the call's."""
    call.error = call.error or error


def _unavailable(state: MachineState, stage_id: int, reason: str) -> ErrorInfo:
    name = state.plan(stage_id).name
    return ErrorInfo(StageUnavailableError.code, f"{name} cannot answer: {reason}", stage=name)


def _reply_if_complete(state: MachineState, call_id: str) -> None:
    call = state.calls[call_id]
    if call.awaited:
        return
    del state.calls[call_id]
    state.timers.clear(CallDeadline(call_id))
    state.tell(ControlReply(call_id=call_id, results=call.results, error=call.error))
