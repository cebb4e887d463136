"""What goes to the caller: replies in production order, held back while its window is full, and the watch over a stalled one.

The shell copies an item when it carries out its Reply, and the Release that follows right behind it, so the item's memory is soon
free for others: a caller that takes nothing keeps credit and window, but no piece of an arena.
"""

from __future__ import annotations

from omnistage.orchestrator.client import OutboundItem
from omnistage.orchestrator.edges import EdgeState, Item
from omnistage.orchestrator.ending import finish_if_complete
from omnistage.orchestrator.requests import RequestState
from omnistage.orchestrator.state import MachineState
from omnistage.orchestrator.timers import StallDeadline
from omnistage.wire.messages import CLIENT, ClientTook, Reply


def offer(state: MachineState, request: RequestState, edge: EdgeState, item: Item) -> None:
    """An item, held already, for the caller."""
    windowed = edge.plan.windowed
    passed = request.attempt.client.offer(OutboundItem(edge.plan.source, item, windowed))
    _reply(state, request, passed)
    _watch(state, request)


def took(state: MachineState, event: ClientTook) -> None:
    """The caller has taken an item: its bytes in the window are free and its source may go on. What it took of an older attempt
    has nothing to do with the item of the same number now."""
    request = state.requests.get(event.request_id)
    if request is None or event.attempt != request.attempt.number:
        return
    item = request.attempt.client.took(event.source, event.seq)
    if item is None:
        return
    edge = request.attempt.edges[item.source, CLIENT]
    state.grant(request, edge, edge.acknowledge_one())
    _reply(state, request, request.attempt.client.pump())
    state.timers.clear(StallDeadline(request.request_id))
    _watch(state, request)
    finish_if_complete(state, request)


def _reply(state: MachineState, request: RequestState, items: list[OutboundItem]) -> None:
    for sent in items:
        request.replied = request.replied or not sent.item.progress
        state.tell(
            Reply(
                request_id=request.request_id,
                attempt=request.attempt.number,
                source=sent.source,
                seq=sent.item.seq,
                final_output_type=state.plan(sent.source).final_output_type or "",
                ref=sent.item.ref,
                last=sent.item.last,
            )
        )
        state.refs.drop(sent.item.ref)


def _watch(state: MachineState, request: RequestState) -> None:
    """While something waits for the caller its next step has a deadline."""
    timer = StallDeadline(request.request_id)
    if not request.attempt.paused:
        state.timers.clear(timer)
        state.resume(request)
        return
    state.pause(request)
    if timer not in state.timers:
        state.timers.set(timer, state.now + state.config.limits.client_stall_s)
