"""What every kind of stage has in common: its requests, its inputs, its outputs, and the protocol of its engine.

One protocol for AR, generation and diffusion, so that one worker hosts them all. An engine lives in one step thread;
only `interrupt` may be called from another. It knows nothing of sockets, connectors, other stages or the orchestrator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec

from omnistage.core.errors import ErrorInfo
from omnistage.core.payload import MultimodalPayload
from omnistage.core.request import OmniRequest, StageTimes, Usage
from omnistage.modeling.protocols import Bridge as Bridge  # families write them, and stand below this package
from omnistage.modeling.protocols import StageInput as StageInput


@dataclass(frozen=True, slots=True)
class PreparedInput:
    """What the processor of an entry stage made of a request: `value`, in `prepare_s` seconds; `elapsed_s` had passed since the
    request came to the stage."""

    value: Any
    prepare_s: float
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class StageRequest:
    """A request as one stage sees it. `attempt` counts its runs from the beginning; `order` is its place in the one total
    order, smaller first. `active_targets`: stage ids (or CLIENT) that get what this stage makes; nothing is captured for
    the others. `prepared`: its inputs, where a helper process has made them."""

    request: OmniRequest
    attempt: int
    stage_id: int
    order: tuple[int, int]
    active_targets: frozenset[int]
    prepared: PreparedInput | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    def prepared_by(self, processor: Callable[[OmniRequest], Any]) -> PreparedInput:
        """What `processor` makes of it, here and now, unless that was done before. Raises what the processor raises."""
        if self.prepared is not None:
            return self.prepared
        begun_s = time.monotonic()
        value = processor(self.request)
        took_s = time.monotonic() - begun_s
        return PreparedInput(value, took_s, took_s)


class StageOutput(msgspec.Struct, frozen=True):
    """What one step did for one request.

    `capture` is what the stage made (tensors and metadata); edges pick from it. `consumed` lists (source, seq) up to
    which inputs were taken over by the bridge, `copied` those up to which no item is lent any more. `finish_reason`
    ends the request in this stage; `error` ends it as failed.
    """

    request_id: str
    capture: MultimodalPayload | None = None
    consumed: tuple[tuple[int, int], ...] = ()
    finish_reason: str | None = None
    usage: Usage = Usage()
    times: StageTimes = StageTimes()
    error: ErrorInfo | None = None
    copied: tuple[tuple[int, int], ...] = ()


class StageEngine(Protocol):
    """The one protocol of all stage kinds. Calls never block and never raise for a request's fault: the fault comes
    back from `step` as a StageOutput with `error`."""

    def add(self, request: StageRequest) -> None:
        """Takes a request over. What it cannot serve comes back from the next step as an error."""

    def feed(self, request_id: str, source: int, seq: int, item: MultimodalPayload | None, *, last: bool) -> None:
        """Input for a request; `item` views are valid until `consumed` or `copied` says that they are not needed."""

    def cancel(self, request_id: str) -> None:
        """Forgets a request at once: slots, blocks and state are free when it returns. Unknown ids are fine."""

    def interrupt(self, request_id: str) -> None:
        """Called from the IO thread: asks a running step to end early if it works for this request alone."""

    def set_ready(self, request_id: str, ready: bool) -> None:
        """False while this request cannot hand over more (no credit, no room): it is not scheduled, lends its place to others,
        and copies out what it was lent."""

    def has_work(self) -> bool:
        """True if `step` could do something now."""

    def step(self) -> list[StageOutput]:
        """Schedule, run, commit: one bounded piece of work."""

    def gauges(self) -> dict[str, float]:
        """Figures for metrics, at least `running`, `waiting` and `input_nbytes` (the requests' join buffers and inputs)."""


@runtime_checkable
class ControlledEngine(Protocol):
    """What an engine adds if it can carry out control calls (reset a cache, tokenize, ...)."""

    def control(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The result, plain data. Raises UnsupportedByModelError for a name it does not know."""
