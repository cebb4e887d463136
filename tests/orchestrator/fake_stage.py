"""A fake stage with everything that can lock up a pipeline: slots, KV blocks, an arena, join buffers, credit and a speed.

It keeps the rules real stages keep: one total order decides about slots, blocks and room; a bridge that cannot go on
withholds no credit; what is blocked keeps copies of what waits for its bridge; the oldest on an edge always gets room. What it
makes is numbered, so that a reader can check it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from omnistage.core.errors import ErrorInfo
from omnistage.core.payload import PayloadRef
from omnistage.core.request import StageTimes, Usage
from omnistage.wire.messages import (
    CLIENT,
    Cancel,
    CancelDone,
    Consumed,
    CopiedOut,
    Emitted,
    Feed,
    Grant,
    StageDone,
    StageFailed,
    Submit,
    WorkerEvent,
)

Order = tuple[int, int]


@dataclass(frozen=True)
class StageModel:
    """`items` are made per request, one every `period`. `early` ends without waiting for the end of the inputs, `bare_end`
    sends the end by itself, `shared` puts one ref for all its targets."""

    stage_id: int
    sources: tuple[int, ...] = ()
    gathered: tuple[int, ...] = ()
    items: int = 2
    item_nbytes: int = 40
    period: float = 1.0
    slots: int = 1
    kv_blocks: int = 4
    window: int = 1
    early: bool = False
    bare_end: bool = False
    shared: bool = False


@dataclass
class Faults:
    """What goes wrong with the first attempt of a request in this stage, by request id."""

    fail: set[str] = field(default_factory=set)
    end_early: set[str] = field(default_factory=set)
    drop: set[str] = field(default_factory=set)
    duplicate: set[str] = field(default_factory=set)
    duplicate_fresh: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)


class Arena:
    """Blocks of one incarnation of a replica. `put` gives None when there is no room and the request is not the oldest."""

    def __init__(self, owner: str, epoch: int, blocks: int, book: dict[int, str], keys: Callable[[], int]) -> None:
        self.owner, self.epoch, self.blocks = owner, epoch, blocks
        self.live: dict[int, tuple[tuple[int, int], Order]] = {}
        self.book, self.keys = book, keys

    def put(self, edge: tuple[int, int], order: Order, oldest: bool, nbytes: int, number: int) -> PayloadRef | None:
        older = any(held == edge and other < order for held, other in self.live.values())
        if len(self.live) >= self.blocks and (older or not oldest):
            return None
        key = self.keys()
        self.live[key] = (edge, order)
        self.book[key] = "live"
        return PayloadRef(
            connector="shm", owner=self.owner, epoch=self.epoch, key=key, nbytes=nbytes, metadata={"number": number}
        )


@dataclass
class Inlet:
    queue: deque[Feed] = field(default_factory=deque)
    bridged: int = 0
    copied: int = 0
    ended: bool = False


@dataclass
class Outlet:
    """Targets that get the same items; `queue` holds (number | None for a bare end, last)."""

    targets: tuple[int, ...]
    queue: deque[tuple[int | None, bool]] = field(default_factory=deque)
    seq: int = 0
    ended: bool = False


@dataclass
class Work:
    submit: Submit
    inlets: dict[int, Inlet]
    outlets: list[Outlet]
    credits: dict[int, int]
    made: int = 0
    slot: bool = False
    blocks: int = 0
    closing: bool = False

    @property
    def order(self) -> Order:
        return self.submit.order

    @property
    def name(self) -> str:
        return self.submit.request.request_id

    @property
    def blocked(self) -> bool:
        return any(outlet.queue for outlet in self.outlets)


class FakeStage:
    """`mail` takes commands, `step` does one bounded piece of work for every request that has a slot; both return events."""

    def __init__(self, model: StageModel, arena: Arena, faults: Faults, stuck: bool) -> None:
        self.model, self.arena, self.faults, self.stuck = model, arena, faults, stuck
        self.works: dict[tuple[str, int], Work] = {}
        self.in_flight: dict[tuple[str, int, int], int] = {}

    # ---- mail

    def mail(self, message: Submit | Feed | Grant | Cancel) -> list[WorkerEvent]:
        match message:
            case Submit():
                self._submit(message)
            case Feed():
                work = self.works.get((message.request_id, message.attempt))
                if work is not None:
                    work.inlets[message.source].queue.append(message)
            case Grant():
                work = self.works.get((message.request_id, message.attempt))
                if work is not None:
                    work.credits[message.target] += message.credits
                    window = work.submit.windows[message.target]
                    assert work.credits[message.target] <= window, "more credit than the window"
            case Cancel():
                return self._cancel(message)
        return []

    def _submit(self, message: Submit) -> None:
        key = (message.request.request_id, message.attempt)
        assert key not in self.works, "submitted twice"
        # A worker holds one attempt of a request; the newer one ends the older one.
        for older in [other for other in self.works if other[0] == key[0]]:
            assert older[1] < key[1], "an older attempt comes after a newer one"
            del self.works[older]
        inner = [target for target in message.active_targets if target != CLIENT and target not in self.model.gathered]
        groups = [tuple(inner)] if self.model.shared and inner else [(target,) for target in inner]
        groups += [(target,) for target in message.active_targets if target not in inner]
        self.works[key] = Work(
            message,
            {source: Inlet() for source in self.model.sources},
            [Outlet(group) for group in groups],
            dict(message.windows),
        )

    def _cancel(self, message: Cancel) -> list[WorkerEvent]:
        if self.stuck:
            return []
        work = self.works.pop((message.request_id, message.attempt), None)
        answer: list[WorkerEvent] = [
            CancelDone(request_id=message.request_id, attempt=message.attempt, stage_id=message.stage_id)
        ]
        if work is not None and work.name in self.faults.late:
            return [*answer, *self._late(work)]
        return answer

    # ---- steps

    def step(self) -> list[WorkerEvent]:
        """Events, oldest request first; an empty list means that nothing can go on before new mail."""
        self._assign_slots()
        events: list[WorkerEvent] = []
        for work in self._in_order():
            if work.slot and self._take_blocks(work):
                events += self._bridge(work)
                self._make(work)
        events += self._pump()
        for work in self._in_order():
            if work.blocked:
                events += self._copy_out(work)
        return events

    def _in_order(self) -> list[Work]:
        return sorted(self.works.values(), key=lambda work: work.order)

    def _assign_slots(self) -> None:
        for work in self._in_order():
            if work.slot:
                continue
            holders = [other for other in self.works.values() if other.slot]
            if len(holders) >= self.model.slots:
                younger = [other for other in holders if other.order > work.order]
                if not younger:
                    return
                self._preempt(max(younger, key=lambda other: (other.blocked, other.order)))
            work.slot = True

    def _take_blocks(self, work: Work) -> bool:
        need = 1 + work.made // 2
        while self.model.kv_blocks - sum(other.blocks for other in self.works.values() if other is not work) < need:
            younger = [other for other in self.works.values() if other.blocks and other.order > work.order]
            if not younger:
                self._preempt(work)
                return False
            self._preempt(max(younger, key=lambda other: (other.blocked, other.order)))
        work.blocks = need
        return True

    @staticmethod
    def _preempt(work: Work) -> None:
        work.slot, work.blocks = False, 0

    def _bridge(self, work: Work) -> list[WorkerEvent]:
        events: list[WorkerEvent] = []
        for source, inlet in work.inlets.items():
            start = inlet.bridged
            while inlet.queue and (inlet.bridged - work.made < self.model.window or not self._can_make(work)):
                feed = inlet.queue.popleft()
                assert feed.seq == inlet.bridged, "fed out of order"
                if feed.ref is not None and feed.seq >= inlet.copied:
                    assert self.arena.book[feed.ref.key] == "live", "read after its release"
                if feed.ref is not None:
                    assert feed.ref.metadata["number"] == feed.seq or source in self.model.gathered
                inlet.bridged += 1
                inlet.ended = feed.last
            if inlet.bridged > start:
                key = work.submit.request.request_id
                events.append(
                    Consumed(
                        request_id=key,
                        attempt=work.submit.attempt,
                        source=source,
                        target=self.model.stage_id,
                        seq=inlet.bridged - 1,
                    )
                )
        return events

    def _copy_out(self, work: Work) -> list[WorkerEvent]:
        events: list[WorkerEvent] = []
        for source, inlet in work.inlets.items():
            lent = [feed for feed in inlet.queue if feed.ref is not None and feed.seq >= inlet.copied]
            for feed in lent:
                assert feed.ref is not None and self.arena.book[feed.ref.key] == "live", "copied after its release"
            if lent:
                inlet.copied = lent[-1].seq + 1
                events.append(
                    CopiedOut(
                        request_id=work.name,
                        attempt=work.submit.attempt,
                        source=source,
                        target=self.model.stage_id,
                        seq=lent[-1].seq,
                    )
                )
        return events

    def _can_make(self, work: Work) -> bool:
        return work.made < self.model.items and all(
            inlet.bridged > work.made or inlet.ended for inlet in work.inlets.values()
        )

    def _make(self, work: Work) -> None:
        if work.closing or work.blocked:
            return
        if self._can_make(work):
            number, work.made = work.made, work.made + 1
            last = work.made == self.model.items and not self.model.bare_end
            for outlet in self._outlets(work, gathered=False):
                outlet.queue.append((number, last))
                outlet.ended = last
        elif work.made == self.model.items and (self.model.early or all(inlet.ended for inlet in work.inlets.values())):
            work.closing = True
            for outlet in self._outlets(work, gathered=False):
                if not outlet.ended:
                    outlet.queue.append((None, True))
            for outlet in self._outlets(work, gathered=True):
                outlet.queue.append((0, True))

    def _outlets(self, work: Work, *, gathered: bool) -> list[Outlet]:
        return [outlet for outlet in work.outlets if (outlet.targets[0] in self.model.gathered) is gathered]

    def _pump(self) -> list[WorkerEvent]:
        events: list[WorkerEvent] = []
        room = True
        for work in self._in_order():
            faulty = self._fault(work)
            if faulty is not None:
                events.append(faulty)
                continue
            for outlet in work.outlets:
                while room and outlet.queue and self._has_credit(work, outlet):
                    emitted = self._put(work, outlet)
                    room = bool(emitted)
                    events += emitted
            if work.closing and not work.blocked:
                del self.works[work.name, work.submit.attempt]
                events.append(self._done(work))
        return events

    def _has_credit(self, work: Work, outlet: Outlet) -> bool:
        return all(work.credits.get(target, 1) > 0 for target in outlet.targets)

    def _put(self, work: Work, outlet: Outlet) -> list[WorkerEvent]:
        number, last = outlet.queue[0]
        edge = (self.model.stage_id, outlet.targets[0])
        oldest = work is self._in_order()[0]
        ref = None
        if number is not None:
            ref = self.arena.put(edge, work.order, oldest, self.model.item_nbytes, number)
            if ref is None:
                return []
        outlet.queue.popleft()
        for target in outlet.targets:
            if target in work.credits:
                work.credits[target] -= 1
        seq, outlet.seq = outlet.seq, outlet.seq + 1
        events = [self._emitted(work, target, seq, ref, last) for target in outlet.targets]
        return self._spoil(work, events)

    def _emitted(self, work: Work, target: int, seq: int, ref: PayloadRef | None, last: bool) -> Emitted:
        return Emitted(
            request_id=work.name,
            attempt=work.submit.attempt,
            source=self.model.stage_id,
            target=target,
            seq=seq,
            ref=ref,
            last=last,
        )

    def _done(self, work: Work) -> StageDone:
        return StageDone(
            request_id=work.name,
            attempt=work.submit.attempt,
            stage_id=self.model.stage_id,
            reason="stop",
            usage=Usage(completion_tokens=work.made),
            times=StageTimes(),
        )

    # ---- faults, once per request

    def _fault(self, work: Work) -> WorkerEvent | None:
        if work.name in self.faults.fail and work.made > 0:
            self.faults.fail.discard(work.name)
            del self.works[work.name, work.submit.attempt]
            error = ErrorInfo("stage_failed", "it broke", stage=f"s{self.model.stage_id}")
            return StageFailed(
                request_id=work.name, attempt=work.submit.attempt, stage_id=self.model.stage_id, error=error
            )
        if work.name in self.faults.end_early and work.made > 0:
            self.faults.end_early.discard(work.name)
            del self.works[work.name, work.submit.attempt]
            return self._done(work)
        return None

    def _spoil(self, work: Work, events: list[Emitted]) -> list[WorkerEvent]:
        if work.name in self.faults.drop:
            self.faults.drop.discard(work.name)
            for event in events:
                if event.ref is not None:  # lost on the way: nobody can release it
                    self.arena.book[event.ref.key] = "lost"
            return []
        if work.name in self.faults.duplicate:
            self.faults.duplicate.discard(work.name)
            return [*events, *events]
        if work.name in self.faults.duplicate_fresh:
            self.faults.duplicate_fresh.discard(work.name)
            again = [self._emitted(work, event.target, event.seq, self._fresh(work), False) for event in events]
            return [*events, *again]
        return list(events)

    def _late(self, work: Work) -> list[WorkerEvent]:
        self.faults.late.discard(work.name)
        return [
            self._emitted(work, target, 0, self._fresh(work), False)
            for outlet in work.outlets
            for target in outlet.targets
        ]

    def _fresh(self, work: Work) -> PayloadRef | None:
        return self.arena.put((-9, -9), work.order, True, self.model.item_nbytes, 0)
