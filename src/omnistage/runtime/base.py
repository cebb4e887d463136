"""What the engine asks of a runtime, whether stages run in processes of their own (driver) or in the caller's (inline).

A runtime owns the machine, its shell and the replicas. Everything it tells the engine comes through the `sink` given to
`submit`, called in the runtime's own thread (refusals, in the caller's): the engine brings it to its event loop. It must not
block or raise. A runtime knows nothing of HTTP or outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from omnistage.core.errors import ErrorInfo
from omnistage.core.payload import MultimodalPayload
from omnistage.core.request import OmniRequest, StageTimes, Usage
from omnistage.obs.figures import EdgeTotals
from omnistage.orchestrator.plan import OrchestratorConfig
from omnistage.wire.messages import ClientTook, Command, Event


class ClientItem(msgspec.Struct, frozen=True):
    """One item of a final output stage. `payload` holds host copies and stays valid. After taking it the engine calls `took`,
    with the item's `attempt`."""

    request_id: str
    source: int
    seq: int
    final_output_type: str
    payload: MultimodalPayload
    last: bool
    attempt: int = 1


class Taken(msgspec.Struct, frozen=True):
    """What a runtime is told once a caller has taken an item: which one."""

    request_id: str
    source: int
    seq: int
    attempt: int

    def event(self, now: float) -> ClientTook:
        return ClientTook(now=now, request_id=self.request_id, attempt=self.attempt, source=self.source, seq=self.seq)


@dataclass(frozen=True, slots=True)
class ClientRestarted:
    """The request begins again as `attempt`: items that came before are void. Of a streamed request never after an
    item, but for those that tell how far it is."""

    request_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ClientClosed:
    """The request's terminal state; nothing follows. Mappings by stage id, `edges` by (source, target); `reasons` are the
    stages' finish reasons, `waiting_s` how long stages had the request wait before they got it."""

    request_id: str
    outcome: Literal["finished", "failed", "aborted", "timed_out"]
    error: ErrorInfo | None = None
    usage: Mapping[int, Usage] = field(default_factory=dict)
    times: Mapping[int, StageTimes] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    attempts: int = 1
    edges: Mapping[tuple[int, int], EdgeTotals] = field(default_factory=dict)
    waiting_s: Mapping[int, float] = field(default_factory=dict)


Sink = Callable[[ClientItem | ClientRestarted | ClientClosed], None]


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """`state`: starting | ready | silent (it should have been heard of) | draining | restarting | down. `note` is one line: loading
    progress or the reason."""

    process: str
    replica: int
    state: str
    note: str = ""
    progress: float = 0.0
    pid: int | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """`state`: starting | ready | degraded | draining | stopped. `stages`: state of each stage by name ("thinker": "ready").
    `gauges`: stage figures of the last heartbeats by stage name, added up over replicas; `replica_gauges` by (name, replica).
    `reason`: one line, why the runtime itself is not well or has stopped; "" where it is for a replica's sake, or was asked for."""

    state: str
    stages: Mapping[str, str]
    replicas: tuple[ReplicaStatus, ...] = ()
    open_requests: int = 0
    gauges: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    replica_gauges: Mapping[tuple[str, int], Mapping[str, float]] = field(default_factory=dict)
    reason: str = ""

    @property
    def trouble(self) -> str:
        """What is wrong with the runtime; else which stages are not ready and what their replicas say, in one phrase; the whole's
        state where all of them are."""
        if self.reason:
            return self.reason
        waiting = ", ".join(f"{name} is {state}" for name, state in self.stages.items() if state != "ready")
        notes = "; ".join(replica.note for replica in self.replicas if replica.state != "ready" and replica.note)
        return (waiting or self.state) + (f" ({notes})" if notes else "")


class Machine(Protocol):
    """What a runtime asks of the orchestrator."""

    @property
    def config(self) -> OrchestratorConfig:
        """What it was made of; another one made of it answers the same events alike."""

    def start(self, now: float) -> list[Command]:
        """Called once, before any event."""

    def handle(self, event: Event) -> list[Command]:
        """Pure: what follows from `event`, in the order in which it is to be carried out."""

    def snapshot(self) -> dict[str, Any]:
        """Plain data; `replicas` by "process/index", each with its `state`."""


class Runtime(Protocol):
    """All calls are thread-safe and return at once, except `start` (bounded) and `close`."""

    def start(self) -> None:
        """Starts replicas without waiting for them to load."""

    def submit(self, request: OmniRequest, sink: Sink) -> None:
        """The answer, refusal included, always comes through `sink`, ending with exactly one ClientClosed."""

    def abort(self, request_id: str, reason: str) -> None:
        """Ends an open request; unknown ids are fine."""

    def took(self, taken: Sequence[Taken]) -> None:
        """Callers have taken these items; what all of them take at one time is told at once."""

    def control(
        self, name: str, arguments: Mapping[str, Any], done: Callable[[dict[str, Any], ErrorInfo | None], None]
    ) -> None:
        """Asks every stage; `done(results by "stage_id/replica", error)` is called once, in the runtime's thread."""

    def inspect(self, done: Callable[[dict[str, Any]], None]) -> None:
        """`done(the machine's tables and what the runtime itself holds)` is called once, in the runtime's thread; with nothing
        once the runtime has ended. For debugging."""

    def status(self) -> RuntimeStatus:
        """As of now; cheap."""

    def wait_ready(self, timeout_s: float) -> RuntimeStatus:
        """Blocks until every stage is ready or one is down for good, at most `timeout_s`."""

    def wait_stopped(self, timeout_s: float) -> RuntimeStatus:
        """Blocks until the runtime has stopped, closed or by a fault of its own (`reason`), at most `timeout_s`."""

    def close(self, drain_timeout_s: float) -> None:
        """Drains, stops every process, joins every thread. Idempotent; bounded by `drain_timeout_s` + 10 s."""
