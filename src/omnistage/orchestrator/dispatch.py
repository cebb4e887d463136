"""Late submission: a stage gets a request when its first input is there and a replica has a place for it.

Within a stage the total order decides; a request that finds no place keeps no other from a replica it could not use itself.
A request that may have killed its replica has one to itself: it waits until those before it have gone, and those after it wait
until it is clear. The oldest of all can always go on.
"""

from __future__ import annotations

from omnistage.core.request import without_media
from omnistage.orchestrator.edges import EdgeState, Item
from omnistage.orchestrator.pool import SlotState, WorkerState
from omnistage.orchestrator.requests import RequestState, RunStatus
from omnistage.orchestrator.state import MachineState
from omnistage.wire.messages import Feed, Submit


def dispatch(state: MachineState) -> None:
    """Submits whatever can be submitted in the stages whose queues may move."""
    while state.unsettled:
        stage_id = next(iter(state.unsettled))
        del state.unsettled[stage_id]
        _dispatch_stage(state, stage_id)


def _dispatch_stage(state: MachineState, stage_id: int) -> None:
    plan, pool = state.plan(stage_id), state.pool_of(stage_id)
    suspect = state.first_suspect(plan.process)
    full = False
    for order, request_id in list(state.waiting[stage_id]):
        request = state.requests[request_id]
        bound = request.attempt.places.get(plan.process)
        if bound is None and full:
            continue  # an older one found no place, and all that kept it out precede this one too
        if bound is None and suspect is not None and order > suspect:
            continue
        worker = pool.choose(plan, order, bound, alone=order == suspect, paused=state.paused)
        if worker is None:
            full = full or bound is None
            continue
        _submit(state, request, stage_id, worker)


def _submit(state: MachineState, request: RequestState, stage_id: int, worker: WorkerState) -> None:
    attempt = request.attempt
    state.dequeue(request, stage_id)
    request.started = True
    attempt.runs[stage_id] = RunStatus.RUNNING
    attempt.places[worker.process] = worker.index
    slot = SlotState(request.request_id, attempt.number, stage_id, request.order)
    worker.slots[slot.key] = slot
    outgoing = attempt.outgoing(stage_id)
    is_entry = stage_id in request.graph.entries
    state.tell(
        Submit(
            process=worker.process,
            replica=worker.index,
            epoch=worker.epoch,
            stage_id=stage_id,
            request=request.request if is_entry else without_media(request.request),
            attempt=attempt.number,
            order=request.order,
            active_targets=tuple(edge.plan.target for edge in outgoing),
            windows={edge.plan.target: edge.plan.window for edge in outgoing if edge.plan.windowed},
        )
    )
    for edge in attempt.incoming(stage_id):
        for item in edge.take_backlog():
            feed(state, request, edge, item)


def feed(state: MachineState, request: RequestState, edge: EdgeState, item: Item) -> None:
    """Hands an item, held already, to its running target; the target's slot holds it from now on."""
    source, target = edge.plan.source, edge.plan.target
    worker = state.worker_of(request, target)
    state.slot_of(request, target).held[source, item.seq] = item.ref
    state.tell(
        Feed(
            process=worker.process,
            replica=worker.index,
            epoch=worker.epoch,
            request_id=request.request_id,
            attempt=request.attempt.number,
            source=source,
            target=target,
            seq=item.seq,
            ref=item.ref,
            last=item.last,
        )
    )
