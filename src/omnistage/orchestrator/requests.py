"""The state of one open request: its place in the total order and everything of its current attempt.

queued -> running -> exactly one terminal state (then the request leaves the machine's table). A new attempt starts from an
empty AttemptState. Knows neither replicas' fates nor commands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from omnistage.core.request import OmniRequest, StageTimes, Usage
from omnistage.orchestrator.client import ClientState
from omnistage.orchestrator.edges import EdgeState
from omnistage.orchestrator.plan import ActiveGraph, EdgePlan
from omnistage.wire.messages import CLIENT

Order = tuple[int, int]
"""(priority, arrival): every queue of every stage uses it, smaller first."""


class RunStatus(StrEnum):
    """How far one stage is with one attempt."""

    IDLE = "idle"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True)
class AttemptState:
    """One run of a request from its beginning. `places`: the replica chosen per process."""

    number: int
    client: ClientState
    runs: dict[int, RunStatus]
    edges: dict[tuple[int, int], EdgeState]
    places: dict[str, int] = field(default_factory=dict)
    usage: dict[int, Usage] = field(default_factory=dict)
    times: dict[int, StageTimes] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, number: int, graph: ActiveGraph, client_window_nbytes: int) -> AttemptState:
        return cls(
            number=number,
            client=ClientState(client_window_nbytes),
            runs=dict.fromkeys(graph.stages, RunStatus.IDLE),
            edges={(edge.source, edge.target): EdgeState(edge) for edge in graph.edges},
        )

    @property
    def complete(self) -> bool:
        """Every stage has ended and everything was handed to the caller."""
        return not self.client.held and all(status is RunStatus.ENDED for status in self.runs.values())

    @property
    def paused(self) -> bool:
        """Something waits for the caller to take what it was sent."""
        return bool(self.client.held) or any(
            edge.exhausted for edge in self.edges.values() if edge.plan.target == CLIENT
        )

    def outgoing(self, stage_id: int) -> list[EdgeState]:
        return [edge for edge in self.edges.values() if edge.plan.source == stage_id]

    def incoming(self, stage_id: int) -> list[EdgeState]:
        return [edge for edge in self.edges.values() if edge.plan.target == stage_id]

    def appended_edge(self, entry: int) -> EdgeState:
        """The edge from the caller to an entry stage; it comes to be with the first appended input."""
        return self.edges.setdefault((CLIENT, entry), EdgeState(EdgePlan(CLIENT, entry, window=0)))


@dataclass(frozen=True, slots=True)
class Suspicion:
    """The request was present when a replica of `process` died, after `said` items of it had come from there: it may be why."""

    process: str
    said: int


@dataclass(slots=True)
class RequestState:
    """`deaths`: worker deaths this request was present at; while there is a `suspicion` it has its replica to itself.
    `replied`: the caller has seen something of the answer, more than how far it is."""

    request: OmniRequest
    order: Order
    graph: ActiveGraph
    attempt: AttemptState
    deaths: int = 0
    suspicion: Suspicion | None = None
    started: bool = False
    replied: bool = False
    appended: bool = False

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def replayable(self) -> bool:
        """A streamed request may begin again until its first reply, a whole one until its end; appended input is not kept."""
        return not self.appended and not (self.request.stream and self.replied)
