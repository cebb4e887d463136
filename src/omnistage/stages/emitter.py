"""The outputs of a stage on their way out: what was captured is picked per edge, gathered into chunks, put, reported.

    gather(capture)  ->  per edge: select, [gathered parts]  ->  pump: chunk policy, credit, room  ->  Emitted

A chunk leaves at `first` units while nothing of the request is in flight on its edge, else at `later` (pinned: `first` for
the first chunk, then `later`). In rows and frames everything gathered leaves at once; items, and a pinned schedule, leave
in chunks that reach the threshold, so that their borders do not depend on credit. With `streaming=False` everything leaves at
the end: items as one payload, rows and frames in the chunks of the pinned schedule, so that whoever tiles by them computes the
same as with that schedule streamed. Text for the caller is never windowed: it leaves at every step, but within REST_S of the
last of it only when the engine has nothing more to do. So steps that take less are told together, at a fraction of the cost for
all who hear of it, and nobody reads that fast. Frames that leave early rest as well: each of them plays for longer than that.

Requests are served in the one total order. When the connector has no room for a request, younger ones send only what
needs none, until room comes; but the oldest request that an edge is open for has room of its own. The last item of every
edge carries `last` (without payload if nothing is left), and after that of all edges comes StageDone. Memory: a request
with a whole chunk that cannot leave is `blocked`, and its engine is told to make no more; what waits for its end is
bounded by `max_gathered_nbytes`.
Knows nothing of engines, sockets or torch.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from omnistage.config.stage import OutputEdge
from omnistage.connectors.base import INLINE_NBYTES, Connectors
from omnistage.core.errors import ErrorInfo, OmniError, PayloadTooLargeError, StageFailedError
from omnistage.core.payload import MultimodalPayload, merge
from omnistage.core.request import OmniRequest
from omnistage.stages.base import StageOutput, StageRequest
from omnistage.wire.messages import CLIENT, Emitted, StageDone

REST_S = 0.005
"""How long text of a request waits for more after text of it has left, and less than a whole chunk of frames after frames."""

Select = Callable[[MultimodalPayload, OmniRequest], MultimodalPayload | None]
"""`select(capture, request)`: what of a capture travels over an edge; None sends nothing of it."""


@dataclass(slots=True)
class OutgoingEdgeState:
    """One outgoing edge of one request. `credits` None: not windowed. `is_text`: whatever is there leaves together. Text, and less
    than a whole chunk of frames, leaves from `rests_until_s` on. `parts` with their units and bytes."""

    edge: OutputEdge
    credits: int | None
    is_text: bool
    rests_until_s: float = -math.inf
    parts: deque[tuple[MultimodalPayload, int, int]] = field(default_factory=deque)
    units: int = 0
    nbytes: int = 0
    sent: int = 0
    granted: int = 0
    closed: bool = False

    @property
    def threshold(self) -> int:
        """Units at which the next chunk leaves."""
        if self.is_text:
            return 1
        begins = self.sent == 0 or (self.hurries and self.granted >= self.sent)
        return self.edge.first if begins else self.edge.later

    @property
    def hurries(self) -> bool:
        """Whether small chunks leave while nothing is in flight."""
        return self.edge.adaptive and self.edge.streaming

    @property
    def has_credit(self) -> bool:
        return self.credits is None or self.credits > 0

    def add(self, part: MultimodalPayload) -> None:
        rows, nbytes = _size(part)
        units = 1 if self.edge.unit == "items" else rows
        self.parts.append((part, units, nbytes))
        self.units += units
        self.nbytes += nbytes

    def is_due(self, ended: bool, now_s: float) -> bool:
        """A chunk, or the bare end, is to leave at `now_s`."""
        if self.closed or ended:
            return not self.closed
        if now_s < self.rests_until_s and (self.is_text or self.units < self.edge.later):
            return False
        return self.edge.streaming and bool(self.parts) and self.units >= self.threshold

    def next_parts(self) -> int:
        """How many of the gathered parts make the next chunk."""
        takes_all = not self.edge.streaming if self.edge.unit == "items" else self.edge.streaming and self.edge.adaptive
        if self.is_text or takes_all:
            return len(self.parts)
        units = 0
        for count, (_, part_units, _) in enumerate(self.parts, start=1):
            units += part_units
            if units >= self.threshold:
                return count
        return len(self.parts)

    def units_of(self, count: int) -> int | None:
        """Rows or frames of the next `count` parts; None for an edge that counts items."""
        if self.edge.unit == "items":
            return None
        return self.units if count == len(self.parts) else sum(units for _, units, _ in islice(self.parts, count))

    def drop(self, count: int, *, last: bool, now_s: float) -> None:
        """`count` parts have left as one item."""
        if count == len(self.parts):  # mostly
            self.parts.clear()
            self.units = self.nbytes = 0
        else:
            for _ in range(count):
                _, units, nbytes = self.parts.popleft()
                self.units -= units
                self.nbytes -= nbytes
        self.sent += 1
        self.closed = last
        if self.is_text or (self.hurries and self.edge.unit == "frames"):
            self.rests_until_s = now_s + REST_S
        if self.credits is not None:
            self.credits -= 1


@dataclass(slots=True)
class OutgoingState:
    """The outgoing edges of one request; `done` is the engine's last word once it has ended it. `may_send`: something is due, or
    may have become so since it was looked at; mostly nothing is, and the request is passed over."""

    request: StageRequest
    edges: dict[int, OutgoingEdgeState]
    done: StageOutput | None = None
    may_send: bool = False

    def is_blocked(self, now_s: float) -> bool:
        """A chunk that could leave is waiting while the engine could still make more. Text waits for nobody."""
        if not self.may_send or self.done is not None:
            return False
        return any(edge.is_due(False, now_s) for edge in self.edges.values() if not edge.is_text)

    @property
    def is_due(self) -> bool:
        """Something would leave sooner or later without anything more being made."""
        ended = self.done is not None
        return any(edge.is_due(ended, math.inf) for edge in self.edges.values())


@dataclass(slots=True)
class Pumped:
    """What one `pump` did. `failed`: requests whose payloads cannot travel; they are forgotten here. Their errors are values: an
    exception knows the frame that keeps it, and that circle keeps the payload, and the memory it lies in, until garbage is
    collected."""

    events: list[Emitted | StageDone] = field(default_factory=list)
    failed: list[tuple[StageRequest, ErrorInfo]] = field(default_factory=list)


class Emitter:
    """See the module. `selects` holds the loaded hook of every edge that names one, by target."""

    def __init__(
        self,
        outputs: tuple[OutputEdge, ...],
        connectors: Connectors,
        *,
        stage: str,
        final_output_type: str | None = None,
        selects: Mapping[int, Select] | None = None,
        max_gathered_nbytes: int = 256 * 2**20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outputs = {edge.target: edge for edge in outputs}
        self._connectors = connectors
        self._stage = stage
        self._sends_text = final_output_type == "text"
        self._selects = dict(selects or {})
        self._max_gathered_nbytes = max_gathered_nbytes
        self._clock = clock
        self._now_s = self._due_s = clock()  # of the pump that runs
        self._requests: dict[str, OutgoingState] = {}  # oldest first
        self.wants_room = False

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def figures(self) -> dict[str, int]:
        """What waits to be sent. May be called from any thread."""
        edges = [edge for state in tuple(self._requests.values()) for edge in tuple(state.edges.values())]
        return {
            "outgoing_requests": len(self._requests),
            "gathered_parts": sum(len(edge.parts) for edge in edges),
            "gathered_nbytes": sum(edge.nbytes for edge in edges),
        }

    def open(self, request: StageRequest, windows: Mapping[int, int]) -> None:
        """Begins a request. Raises StageFailedError for an active target that the stage has no edge to."""
        edges = {}
        for target in sorted(request.active_targets):
            edge = self._outputs.get(target)
            if edge is None:
                raise StageFailedError(f"stage {self._stage} has no edge to stage {target}", stage=self._stage)
            is_text = self._sends_text and target == CLIENT
            edges[target] = OutgoingEdgeState(edge, None if is_text else windows.get(target), is_text)
        held = {**self._requests, request.request_id: OutgoingState(request, edges)}
        self._requests = dict(sorted(held.items(), key=lambda item: item[1].request.order))

    def close(self, request_id: str) -> None:
        """Forgets a request and what was gathered for it."""
        self._requests.pop(request_id, None)

    def gather(self, request_id: str, capture: MultimodalPayload) -> None:
        """Adds what each active edge picks of a capture. Raises what a hook raised, or PayloadTooLargeError."""
        state = self._requests[request_id]
        for target, edge in state.edges.items():
            part = self._select(target, capture, state.request.request)
            if part is not None:
                edge.add(part)
                self._check_size(edge)
                state.may_send = state.may_send or edge.is_due(False, math.inf)

    def end(self, request_id: str, done: StageOutput) -> None:
        """The engine has ended the request by itself: what is left leaves, then StageDone."""
        state = self._requests[request_id]
        state.done, state.may_send = done, True

    def has_ended(self, request_id: str) -> bool:
        """The engine knows this request no more; what is left of it is here."""
        state = self._requests.get(request_id)
        return state is not None and state.done is not None

    def grant(self, request_id: str, target: int, count: int) -> None:
        """`count` more items may go to `target`, because as many have been consumed."""
        state = self._requests[request_id]
        edge = state.edges.get(target)
        if edge is None:
            return
        state.may_send = True
        edge.granted += count
        if edge.credits is not None:
            edge.credits += count

    def blocked(self) -> set[str]:
        """Requests that can hand over nothing more until credit or room comes. To be asked after `pump`."""
        return {request_id for request_id, state in self._requests.items() if state.is_blocked(self._due_s)}

    def pump(self, *, is_idle: bool = False) -> Pumped:
        """Sends what may leave now, oldest request first. `is_idle`: nothing more is being made, so that no text waits for more."""
        pumped = Pumped()
        self._now_s = self._clock()
        self._due_s = math.inf if is_idle else self._now_s
        self.wants_room = False
        for state in [held for held in self._requests.values() if held.may_send]:
            try:
                self._pump_request(state, pumped)
            except Exception as error:  # noqa: BLE001 - a payload that cannot be put fails its own request, whatever it is
                self.close(state.request.request_id)
                pumped.failed.append((state.request, ErrorInfo.of(error, stage=self._stage)))
        return pumped

    def _pump_request(self, state: OutgoingState, pumped: Pumped) -> None:
        ended = state.done is not None
        for target, edge in state.edges.items():
            while edge.is_due(ended, self._due_s) and edge.has_credit:
                item = self._put(state.request, edge, ended, is_oldest=self._oldest_of(target) is state)
                if item is None:
                    break
                pumped.events.append(item)
        state.may_send = state.is_due
        if state.done is not None and all(edge.closed for edge in state.edges.values()):
            pumped.events.append(self._stage_done(state.request, state.done))
            self.close(state.request.request_id)

    def _oldest_of(self, target: int) -> OutgoingState | None:
        """The oldest request that an edge to `target` is open for."""
        for state in self._requests.values():
            edge = state.edges.get(target)
            if edge is not None and not edge.closed:
                return state
        return None

    def _put(self, request: StageRequest, edge: OutgoingEdgeState, ended: bool, *, is_oldest: bool) -> Emitted | None:
        """The next item of an edge, or None if there is no room for it."""
        count = edge.next_parts()
        last = ended and count == len(edge.parts)
        ref, is_progress = None, False
        if count:
            payload = merge([part for part, _, _ in islice(edge.parts, count)])
            # Room that comes free belongs to the older request that waits for it; what travels inline takes none.
            may_try = not self.wants_room or is_oldest or payload.nbytes <= INLINE_NBYTES
            oldest_of = (request.stage_id, edge.edge.target) if is_oldest else None
            connector = self._connectors[edge.edge.connector]
            ref = connector.try_put(payload, oldest_of=oldest_of) if may_try else None
            if ref is None:
                self.wants_room = True
                return None
            is_progress = payload.is_progress
        item = Emitted(
            request_id=request.request_id,
            attempt=request.attempt,
            source=request.stage_id,
            target=edge.edge.target,
            seq=edge.sent,
            ref=ref,
            last=last,
            units=edge.units_of(count),
            progress=is_progress,
        )
        edge.drop(count, last=last, now_s=self._now_s)
        return item

    def _select(self, target: int, capture: MultimodalPayload, request: OmniRequest) -> MultimodalPayload | None:
        select = self._selects.get(target)
        if select is None:
            return capture
        try:
            return select(capture, request)
        except OmniError:
            raise
        except Exception as error:
            where = f"what edge {self._stage} -> {target} selects failed"
            raise StageFailedError(f"{where}: {type(error).__name__}: {error}", stage=self._stage) from error

    def _check_size(self, edge: OutgoingEdgeState) -> None:
        if edge.nbytes > self._max_gathered_nbytes:
            where = f"edge {self._stage} -> {edge.edge.target}"
            raise PayloadTooLargeError(
                f"{where}: {edge.nbytes} bytes wait to be sent; accepted: at most {self._max_gathered_nbytes}",
                stage=self._stage,
                field=where,
            )

    @staticmethod
    def _stage_done(request: StageRequest, done: StageOutput) -> StageDone:
        return StageDone(
            request_id=request.request_id,
            attempt=request.attempt,
            stage_id=request.stage_id,
            reason=done.finish_reason or "done",
            usage=done.usage,
            times=done.times,
        )


def _size(part: MultimodalPayload) -> tuple[int, int]:
    """Length of the first axis of the payload's tensors (the longest), and their bytes; 0 without tensors."""
    rows = nbytes = 0
    for tensor in part.tensors.values():
        spec = tensor.spec
        rows = max(rows, spec.shape[0] if spec.shape else 1)
        nbytes += spec.nbytes
    return rows, nbytes
