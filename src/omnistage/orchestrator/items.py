"""What replicas say of requests, item by item, and what becomes of each.

Items of the dead, of cancelled slots and of stages that were never submitted change nothing; the refs they bring are released.
An uncancelled slot always belongs to the current attempt of an open request.
"""

from __future__ import annotations

from omnistage.orchestrator import control, replies
from omnistage.orchestrator.dispatch import feed
from omnistage.orchestrator.edges import EdgeState, Item, Verdict
from omnistage.orchestrator.ending import clear_if_past, end, fail, finish_if_complete
from omnistage.orchestrator.pool import SlotState, WorkerState
from omnistage.orchestrator.requests import RequestState, RunStatus
from omnistage.orchestrator.state import MachineState
from omnistage.wire.messages import (
    CLIENT,
    CancelDone,
    Consumed,
    ControlDone,
    CopiedOut,
    Emitted,
    Reported,
    StageDone,
    StageFailed,
    WorkerEvent,
)


def reported(state: MachineState, event: Reported) -> None:
    """One report of one replica, in its own order."""
    worker = state.worker(event.process, event.replica)
    for item in event.items:
        if worker is not None and worker.reports_for(event.epoch):
            _take(state, worker, item)
        elif isinstance(item, Emitted):  # a last word of the dead: what it brings is nobody's
            state.refs.refuse(item.ref)


def _take(state: MachineState, worker: WorkerState, item: WorkerEvent) -> None:
    match item:
        case Emitted():
            _emitted(state, worker, item)
        case Consumed():
            _consumed(state, worker, item)
        case CopiedOut():
            _copied_out(state, worker, item)
        case StageDone():
            _stage_done(state, worker, item)
        case StageFailed():
            _stage_failed(state, worker, item)
        case CancelDone():
            _cancel_done(state, worker, item)
        case ControlDone():
            control.answered(state, worker, item)


def accept(state: MachineState, request: RequestState, edge: EdgeState, item: Item) -> bool:
    """Delivers the next item of an edge; one that was seen before changes nothing. False for a gap, which ends the request."""
    match edge.judge(item.seq):
        case Verdict.NEXT:
            _deliver(state, request, edge, item)
        case Verdict.SEEN:
            if not edge.is_repeated(item):
                state.refs.refuse(item.ref)
        case Verdict.GAP:
            state.refs.refuse(item.ref)
            return False
    return True


def _deliver(state: MachineState, request: RequestState, edge: EdgeState, item: Item) -> None:
    """Takes the next item of an edge and brings it to where its target is."""
    if edge.exhausted and item.ref is not None:
        state.window_overruns += 1  # a source that sends without credit; counted, as only its own buffers suffer
    edge.record(item)
    target = edge.plan.target
    state.refs.hold(item.ref)
    if target == CLIENT:
        replies.offer(state, request, edge, item)
        return
    match request.attempt.runs[target]:
        case RunStatus.RUNNING:
            feed(state, request, edge, item)
        case RunStatus.ENDED:  # a consumer that is done has consumed everything
            state.refs.drop(item.ref)
            state.grant(request, edge, edge.acknowledge_upto(item.seq))
        case RunStatus.WAITING:
            edge.backlog.append(item)
        case RunStatus.IDLE:
            edge.backlog.append(item)
            state.enqueue(request, target)


def _live(state: MachineState, slot: SlotState | None) -> RequestState | None:
    return None if slot is None or slot.cancelled else state.requests[slot.request_id]


def _emitted(state: MachineState, worker: WorkerState, event: Emitted) -> None:
    request = _live(state, worker.slots.get((event.request_id, event.attempt, event.source)))
    edge = request.attempt.edges.get((event.source, event.target)) if request else None
    if request is None or edge is None:
        state.refs.refuse(event.ref)
        return
    if not accept(state, request, edge, Item(event.seq, event.ref, event.last, event.progress)):
        message = f"item {event.seq} for {_name(state, event.target)} came where {edge.next_seq} was due"
        fail(state, request, message, event.source)
        return
    clear_if_past(state, request)


def _consumed(state: MachineState, worker: WorkerState, event: Consumed) -> None:
    slot = worker.slots.get((event.request_id, event.attempt, event.target))
    if slot is None:
        return
    _drop_upto(state, slot, event.source, event.seq)
    request = _live(state, slot)
    edge = request.attempt.edges.get((event.source, event.target)) if request else None
    if request is not None and edge is not None:
        state.grant(request, edge, edge.acknowledge_upto(event.seq))


def _copied_out(state: MachineState, worker: WorkerState, event: CopiedOut) -> None:
    slot = worker.slots.get((event.request_id, event.attempt, event.target))
    if slot is not None:
        _drop_upto(state, slot, event.source, event.seq)


def _drop_upto(state: MachineState, slot: SlotState, source: int, seq: int) -> None:
    """The slot needs the payloads of `source` up to `seq` no more."""
    for key in [key for key in slot.held if key[0] == source and key[1] <= seq]:
        state.refs.drop(slot.held.pop(key))


def _stage_done(state: MachineState, worker: WorkerState, event: StageDone) -> None:
    slot = worker.slots.get((event.request_id, event.attempt, event.stage_id))
    request = _live(state, slot)
    if slot is not None:
        state.free(worker, slot)
    if request is None:
        return
    attempt, stage_id = request.attempt, event.stage_id
    attempt.runs[stage_id] = RunStatus.ENDED
    attempt.usage[stage_id] = event.usage
    attempt.times[stage_id] = event.times
    attempt.reasons[stage_id] = event.reason
    for edge in attempt.outgoing(stage_id):
        if not edge.ended:
            message = f"ended before its last item for {_name(state, edge.plan.target)}"
            fail(state, request, message, stage_id)
            return
    for edge in attempt.incoming(stage_id):
        state.grant(request, edge, edge.acknowledge_upto(edge.next_seq))
    clear_if_past(state, request)
    finish_if_complete(state, request)


def _stage_failed(state: MachineState, worker: WorkerState, event: StageFailed) -> None:
    slot = worker.slots.get((event.request_id, event.attempt, event.stage_id))
    request = _live(state, slot)
    if slot is not None:
        state.free(worker, slot)
    if request is not None:
        request.attempt.runs[event.stage_id] = RunStatus.ENDED
        end(state, request, "failed", event.error)


def _cancel_done(state: MachineState, worker: WorkerState, event: CancelDone) -> None:
    slot = worker.slots.get((event.request_id, event.attempt, event.stage_id))
    if slot is not None and slot.cancelled:
        state.free(worker, slot)


def _name(state: MachineState, target: int) -> str:
    return "the caller" if target == CLIENT else state.plan(target).name
