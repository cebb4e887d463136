"""What every kind of stage has in common: its requests, its inputs, its outputs, and the protocol of its engine.

One protocol for AR, generation and diffusion, so that one worker hosts them all. An engine lives in one step thread; only
`interrupt` may be called from another. It knows nothing of sockets, connectors, other stages or the orchestrator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from omnistage.core.errors import ErrorInfo
from omnistage.core.payload import MultimodalPayload
from omnistage.core.request import OmniRequest, StageTimes, Usage


@dataclass(frozen=True, slots=True)
class StageRequest:
    """A request as one stage sees it. `key` tells its attempts apart; `order` is its place in the one total order, smaller
    first. `active_targets`: stage ids (or CLIENT) that get what this stage makes; nothing is captured for the others."""

    request: OmniRequest
    attempt: int
    stage_id: int
    order: tuple[int, int]
    active_targets: frozenset[int]

    @property
    def request_id(self) -> str:
        return self.request.request_id


@dataclass(frozen=True, slots=True)
class StageInput:
    """One unit of work for a stage, made by its bridge (or, in an entry stage, by its processor). `data` is the family's own:
    an AR stage reads `token_ids` (list of int) or `embeds` ([rows, hidden]), a generation model reads what its bridge wrote.
    `nbytes` counts against the request's input bound."""

    data: Mapping[str, Any]
    nbytes: int = 0


Bridge = Callable[[Any, int, int, MultimodalPayload | None, bool], tuple[Any, list[StageInput]]]
"""`bridge(state, source, seq, payload | None, last) -> (state, inputs)`. Pure; the first state is None. It is called once for
every item of every source, in order per source, and must copy what it keeps of the payload. When every source has sent
its last item no more inputs follow."""


@dataclass(frozen=True, slots=True)
class StageOutput:
    """What one step did for one request.

    `capture` is what the stage made (tensors and metadata); edges pick from it. `consumed` lists (source, seq) up to which
    inputs were taken over by the bridge. `finish_reason` ends the request in this stage; `error` ends it as failed.
    `blocked` targets are not told here: the host asks for room before it hands over and holds the request back by `set_ready`.
    """

    request_id: str
    capture: MultimodalPayload | None = None
    consumed: tuple[tuple[int, int], ...] = ()
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    times: StageTimes = field(default_factory=StageTimes)
    error: ErrorInfo | None = None


class StageEngine(Protocol):
    """The one protocol of all stage kinds. Calls never block and never raise for a request's fault: the fault comes back from
    `step` as a StageOutput with `error`."""

    def add(self, request: StageRequest) -> None:
        """Takes a request over. What it cannot serve comes back from the next step as an error."""

    def feed(self, request_id: str, source: int, seq: int, item: MultimodalPayload | None, *, last: bool) -> None:
        """Input for a request; `item` views are valid until the bridge has run in `step` or `feed`."""

    def cancel(self, request_id: str) -> None:
        """Forgets a request at once: slots, blocks and state are free when it returns. Unknown ids are fine."""

    def interrupt(self, request_id: str) -> None:
        """Called from the IO thread: asks a running step to end early if it works for this request alone."""

    def set_ready(self, request_id: str, ready: bool) -> None:
        """False while this request cannot hand over more (no credit, no room): it keeps its state but is not scheduled."""

    def has_work(self) -> bool:
        """True if `step` could do something now."""

    def step(self) -> list[StageOutput]:
        """Schedule, run, commit: one bounded piece of work."""

    def gauges(self) -> dict[str, float]:
        """Figures for metrics, at least `running` and `waiting`."""
