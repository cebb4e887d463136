"""What flows through a pipeline, measured from the machine's events and commands. Watches only: nothing depends on it.

    emitted          heard          sent            arrived             taken
    source's report  at the driver  Feed or Reply   target's worker     target's report
        '---transfer---''---queue---''---transfer---''------queue------'

An item that its target cannot take yet waits at the driver or in the target: both is queue time. An item for the caller is
taken as it is sent. The two clocks are one where workers and driver share a host; no time comes out negative. Bounded: it keeps
what belongs to open requests, for each edge as many items as its window has. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from omnistage.core.payload import PayloadRef
from omnistage.core.request import StageTimes, Usage
from omnistage.obs.figures import MAX_RUNS, EdgeTotals, FlowObserver, StageFigures
from omnistage.orchestrator.plan import OrchestratorConfig
from omnistage.wire.messages import (
    CLIENT,
    Arrived,
    Cancel,
    Command,
    Consumed,
    Emitted,
    Event,
    Feed,
    ItemArrived,
    ReplicaDown,
    Reply,
    Reported,
    Restarted,
    StageDone,
    StageFailed,
    Submit,
)

CLIENT_NAME = "client"
"""The caller's end of an edge."""

Edge = tuple[int, int]
RunKey = tuple[str, int, int]
"""(request id, attempt, stage id)"""


@dataclass(slots=True)
class _ItemState:
    """One item on its way."""

    nbytes: int
    units: int | None
    emitted_s: float
    heard_s: float
    sent_s: float | None = None
    arrived_s: float | None = None

    def times(self, taken_s: float) -> tuple[float, float]:
        """(transfer, queue) of an item that was sent. Where its arrival is unknown it was on its way until it was taken."""
        sent_s = self.heard_s if self.sent_s is None else self.sent_s
        arrived_s = taken_s if self.arrived_s is None else self.arrived_s
        transfer_s = max(0.0, self.heard_s - self.emitted_s) + max(0.0, arrived_s - sent_s)
        return transfer_s, max(0.0, sent_s - self.heard_s) + max(0.0, taken_s - arrived_s)


@dataclass(frozen=True, slots=True)
class RequestFlow:
    """What was measured of one request. `edges` by (source, target); `waiting_s` by stage id, of the last attempt."""

    edges: Mapping[Edge, EdgeTotals] = field(default_factory=dict)
    waiting_s: Mapping[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class _TotalsState:
    """EdgeTotals in the making."""

    items: int = 0
    nbytes: int = 0
    transfer_s: float = 0.0
    queue_s: float = 0.0
    units: int = 0
    schedule: list[tuple[int, int]] = field(default_factory=list)
    overflowed: bool = False

    def add(self, item: _ItemState) -> None:
        self.items += 1
        self.nbytes += item.nbytes
        if item.units is None:
            return
        self.units += item.units
        same = self.schedule[-1][1] if self.schedule and self.schedule[-1][0] == item.units else 0
        self.overflowed = self.overflowed or (same == 0 and len(self.schedule) == MAX_RUNS)
        if not self.overflowed:
            self.schedule[len(self.schedule) - (same > 0) :] = [(item.units, same + 1)]

    def begin_again(self) -> None:
        self.units, self.overflowed = 0, False
        self.schedule.clear()

    def frozen(self) -> EdgeTotals:
        return EdgeTotals(self.items, self.nbytes, self.transfer_s, self.queue_s, self.units, tuple(self.schedule))


@dataclass(slots=True)
class _FlowState:
    """An open request: what has flowed, and the items of the current attempt that are on their way, by edge and number."""

    since_s: float
    attempt: int = 1
    edges: dict[Edge, _TotalsState] = field(default_factory=dict)
    waiting_s: dict[int, float] = field(default_factory=dict)
    items: dict[Edge, dict[int, _ItemState]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Run:
    """A stage that works for a request."""

    process: str
    replica: int
    epoch: int
    waiting_s: float


class MeterState:
    """`saw` is told of every event with the commands that answered it; `observer` hears what comes of it."""

    def __init__(self, config: OrchestratorConfig, observer: FlowObserver | None = None) -> None:
        self._names = {stage.stage_id: stage.name for stage in config.stages}
        self._observer = observer
        self._flows: dict[str, _FlowState] = {}
        self._runs: dict[RunKey, _Run] = {}
        self._encoder = msgspec.msgpack.Encoder(enc_hook=repr)

    def __len__(self) -> int:
        """Everything that is kept: 0 without open requests."""
        return len(self._flows) + len(self._runs)

    def saw(self, now: float, event: Event | None, commands: list[Command]) -> None:
        match event:
            case Reported():
                self._reported(event)
            case ReplicaDown():
                self._lost(event)
            case Arrived():
                self._flows.setdefault(event.request.request_id, _FlowState(event.now))
        for command in commands:
            match command:
                case Feed() | Reply():
                    self._sent(now, command)
                case Submit():
                    self._submitted(now, command)
                case Cancel():
                    self._end_run((command.request_id, command.attempt, command.stage_id), "cancelled")
                case Restarted():
                    self._restarted(now, command)

    def close(self, request_id: str) -> RequestFlow:
        """The request has ended: what was measured of it, which is forgotten here."""
        flow = self._flows.pop(request_id, None)
        if flow is None:
            return RequestFlow()
        return RequestFlow({edge: totals.frozen() for edge, totals in flow.edges.items()}, flow.waiting_s)

    # ---- events ----

    def _reported(self, event: Reported) -> None:
        taken_s = event.at_s or event.now
        for arrival in event.arrivals:
            self._arrived(arrival)
        for item in event.items:
            match item:
                case Emitted():
                    self._emitted(item, event)
                case Consumed():
                    self._taken(item.request_id, item.attempt, (item.source, item.target), item.seq, taken_s)
                case StageDone():
                    self._done(item, taken_s)
                case StageFailed():
                    self._end_run((item.request_id, item.attempt, item.stage_id), "failed", error=item.error.code)

    def _emitted(self, item: Emitted, event: Reported) -> None:
        key = (item.request_id, item.attempt, item.source)
        if item.ref is None or key not in self._runs:
            return
        held = self._items(item.request_id, item.attempt, (item.source, item.target))
        if held is not None and item.seq not in held:
            held[item.seq] = _ItemState(self._nbytes(item.ref), item.units, event.at_s or event.now, event.now)

    def _arrived(self, arrival: ItemArrived) -> None:
        held = self._items(arrival.request_id, arrival.attempt, (arrival.source, arrival.target)) or {}
        item = held.get(arrival.seq)
        if item is not None:
            item.arrived_s = arrival.at_s

    def _taken(self, request_id: str, attempt: int, edge: Edge, upto: int, taken_s: float) -> None:
        held = self._items(request_id, attempt, edge) or {}
        for seq in [seq for seq, item in held.items() if seq <= upto and item.sent_s is not None]:
            self._take(request_id, edge, held.pop(seq), taken_s)

    def _done(self, item: StageDone, taken_s: float) -> None:
        """A stage that has ended has taken everything it was sent."""
        flow = self._flows.get(item.request_id)
        if flow is not None and flow.attempt == item.attempt:
            for edge in [edge for edge in flow.items if edge[1] == item.stage_id]:
                self._taken(item.request_id, item.attempt, edge, max(flow.items[edge], default=-1), taken_s)
        key = (item.request_id, item.attempt, item.stage_id)
        self._end_run(key, "finished", usage=item.usage, times=item.times)

    def _lost(self, event: ReplicaDown) -> None:
        dead = (event.process, event.replica, event.epoch)
        for key in [key for key, run in self._runs.items() if (run.process, run.replica, run.epoch) == dead]:
            self._end_run(key, "lost")

    # ---- commands ----

    def _submitted(self, now: float, command: Submit) -> None:
        request_id, stage_id = command.request.request_id, command.stage_id
        flow = self._flows.get(request_id)
        if flow is None:
            return
        heard = [item.heard_s for edge, held in flow.items.items() if edge[1] == stage_id for item in held.values()]
        waiting_s = max(0.0, now - min(heard, default=flow.since_s))
        flow.waiting_s[stage_id] = waiting_s
        run = _Run(command.process, command.replica, command.epoch, waiting_s)
        self._runs[request_id, command.attempt, stage_id] = run

    def _sent(self, now: float, command: Feed | Reply) -> None:
        target = command.target if isinstance(command, Feed) else CLIENT
        edge = (command.source, target)
        held = self._items(command.request_id, command.attempt, edge) or {}
        item = held.get(command.seq)
        if item is None:
            return
        item.sent_s = now
        totals = self._flows[command.request_id].edges.setdefault(edge, _TotalsState())
        totals.add(item)
        if self._observer is not None:
            self._observer.item_sent(*self._named(edge), item.nbytes)
        if target == CLIENT:
            self._take(command.request_id, edge, held.pop(command.seq), now)

    def _restarted(self, now: float, command: Restarted) -> None:
        flow = self._flows.get(command.request_id)
        if flow is not None:
            flow.since_s, flow.attempt = now, command.attempt
            flow.items.clear()
            flow.waiting_s.clear()
            for totals in flow.edges.values():
                totals.begin_again()

    # ---- both ----

    def _items(self, request_id: str, attempt: int, edge: Edge) -> dict[int, _ItemState] | None:
        """What is on its way over an edge; None for a request or an attempt that is over."""
        flow = self._flows.get(request_id)
        return None if flow is None or flow.attempt != attempt else flow.items.setdefault(edge, {})

    def _take(self, request_id: str, edge: Edge, item: _ItemState, taken_s: float) -> None:
        if edge[1] == CLIENT:
            item.arrived_s = item.sent_s
        transfer_s, queue_s = item.times(taken_s)
        totals = self._flows[request_id].edges[edge]
        totals.transfer_s += transfer_s
        totals.queue_s += queue_s
        if self._observer is not None:
            self._observer.item_taken(*self._named(edge), transfer_s, queue_s)

    def _end_run(
        self,
        key: RunKey,
        outcome: str,
        *,
        error: str | None = None,
        usage: Usage | None = None,
        times: StageTimes | None = None,
    ) -> None:
        """Once for every run: what its stage says later, of a run that was cancelled, is not counted."""
        run = self._runs.pop(key, None)
        if run is None or self._observer is None:
            return
        counted = usage or Usage()
        self._observer.stage_ended(
            StageFigures(
                stage=self._name(key[2]),
                replica=run.replica,
                outcome=outcome,
                error=error,
                prompt_tokens=counted.prompt_tokens,
                cached_tokens=counted.cached_tokens,
                completion_tokens=counted.completion_tokens,
                audio_seconds=counted.audio_seconds,
                images=counted.images,
                waiting_s=run.waiting_s,
                queued_s=None if times is None else times.queued_s,
                prepare_s=None if times is None else times.prepare_s,
                running_s=None if times is None else times.running_s,
                forward_s=None if times is None else times.forward_s,
            )
        )

    def _nbytes(self, ref: PayloadRef) -> int:
        return ref.nbytes + self._encoded(ref.metadata)

    def _encoded(self, metadata: Mapping[str, Any]) -> int:
        """What metadata weighs in a message; what could not be sent (it stays in this process then) weighs nothing."""
        try:
            return len(self._encoder.encode(metadata)) if metadata else 0
        except (TypeError, ValueError, OverflowError, RecursionError):
            return 0

    def _name(self, stage_id: int) -> str:
        return CLIENT_NAME if stage_id == CLIENT else self._names.get(stage_id, str(stage_id))

    def _named(self, edge: Edge) -> tuple[str, str]:
        return self._name(edge[0]), self._name(edge[1])
