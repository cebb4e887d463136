"""What callers ask: a new request, more input, an end; and what shutting down means for them.

A refusal is a terminal state like any other: exactly one Close. Knows neither items nor replicas' fates.
"""

from __future__ import annotations

from omnistage.core.errors import EngineClosedError, ErrorInfo, InvalidRequestError, QueueFullError
from omnistage.core.request import OmniRequest
from omnistage.orchestrator import ending
from omnistage.orchestrator.edges import Item
from omnistage.orchestrator.items import accept
from omnistage.orchestrator.requests import AttemptState, RequestState
from omnistage.orchestrator.state import MachineState, Phase
from omnistage.orchestrator.timers import DrainDeadline, RequestDeadline
from omnistage.wire.messages import AbortRequested, Arrived, Close, InputAppended, ShutdownRequested


def arrived(state: MachineState, event: Arrived) -> None:
    """Admits a request or refuses it. An id that is in use is a fault of the shell: the second one is dropped and counted."""
    request = event.request
    if _in_use(state, request.request_id):
        state.duplicate_arrivals += 1
        return
    refusal = _refusal(state, request)
    if refusal is not None:
        _refuse(state, request, refusal)
        return
    state.arrivals += 1
    graph = state.config.active(request.wants)
    admitted = RequestState(
        request=request,
        order=(request.priority, state.arrivals),
        graph=graph,
        attempt=AttemptState.of(1, graph, state.config.limits.client_window_nbytes),
    )
    state.requests[request.request_id] = admitted
    timeout_s = min(request.timeout_s, state.config.limits.request_timeout_s)
    state.timers.set(RequestDeadline(request.request_id), state.now + timeout_s)
    for stage_id in graph.entries:
        state.enqueue(admitted, stage_id)


def appended(state: MachineState, event: InputAppended) -> None:
    """More input goes to every entry stage; it is not kept, so the request cannot begin again."""
    request = state.requests.get(event.request_id)
    if request is None:
        state.refs.refuse(event.ref)
        return
    request.appended = True
    item = Item(event.seq, event.ref, event.last)
    for stage_id in request.graph.entries:
        edge = request.attempt.appended_edge(stage_id)
        if not accept(state, request, edge, item):
            ending.reject_append(state, request, event.seq, edge.next_seq)
            return


def aborted(state: MachineState, event: AbortRequested) -> None:
    """An unknown id has ended already."""
    request = state.requests.get(event.request_id)
    if request is not None:
        ending.abort(state, request, event.reason)


def shut_down(state: MachineState, event: ShutdownRequested) -> None:
    """No new requests; what is open has until the deadline."""
    if state.phase is Phase.SERVING:
        state.phase = Phase.DRAINING
    if state.phase is Phase.DRAINING:
        state.timers.set(DrainDeadline(), state.now + event.drain_timeout_s)


def abort_all(state: MachineState) -> None:
    """The time to drain is over. Those that are cut off hear whose doing it is: they asked for nothing wrong."""
    error = ErrorInfo(EngineClosedError.code, "the engine is shutting down")
    for request in list(state.requests.values()):
        if request.request_id in state.requests:
            ending.end(state, request, "failed", error)


def _in_use(state: MachineState, request_id: str) -> bool:
    """Also while a stage still holds something of an ended request of that id: its messages could not be told apart."""
    lingering = any(slot.request_id == request_id for worker in state.workers() for slot in worker.slots.values())
    return lingering or request_id in state.requests


def _refusal(state: MachineState, request: OmniRequest) -> ErrorInfo | None:
    limits = state.config.limits
    if state.phase is not Phase.SERVING:
        return ErrorInfo(EngineClosedError.code, "the engine is shutting down")
    missing = state.config.missing(request.wants)
    if missing or not request.wants:
        made = ", ".join(
            dict.fromkeys(stage.final_output_type for stage in state.config.stages if stage.final_output_type)
        )
        return ErrorInfo.of(InvalidRequestError.of("wants", list(missing), made))
    for stage_id in state.config.active(request.wants).stages:
        pool = state.pool_of(stage_id)
        if pool.lost:
            return ending.unavailable(state, pool.process)
    if _is_full(state, request) and not _companions(state, request):
        message = f"{limits.max_queued_requests} requests are waiting already"
        return ErrorInfo(QueueFullError.code, message, retry_after_s=limits.retry_after_s)
    return None


def _is_full(state: MachineState, request: OmniRequest) -> bool:
    """Two bounds: of those that no stage has seen yet, and of all that are open, beyond what its stages have places for. Some
    take no place (they overtake others, or wait for their callers), and some wait in the middle of the pipeline."""
    most = state.config.limits.max_queued_requests
    stages = map(state.plan, state.config.active(request.wants).stages)
    places = sum(worker.places(stage) for stage in stages for worker in state.pools[stage.process].workers)
    return state.queued() >= most or len(state.requests) >= most + places


def _refuse(state: MachineState, request: OmniRequest, error: ErrorInfo) -> None:
    """A group is admitted whole or not at all, so open companions end too."""
    state.tell(Close(request_id=request.request_id, outcome="failed", error=error))
    for companion in _companions(state, request)[:1]:
        ending.end(state, companion, "failed", error)


def _companions(state: MachineState, request: OmniRequest) -> list[RequestState]:
    group = request.group_id
    return [other for other in state.requests.values() if group is not None and other.request.group_id == group]
