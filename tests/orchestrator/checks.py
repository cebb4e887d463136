"""The invariants, checked from outside on the events and commands of one world.

One terminal state and nothing after it; every ref released once and never while someone reads it; order; pruned stages untouched;
windows of items and bytes kept; no submission beyond capacity + lookahead of those that precede, where as many that wait for their
callers as are allowed for each of these places do not count. It shares no code with the machine: it knows the pipeline from the
configuration alone.
"""

from __future__ import annotations

import math
from collections import Counter

from omnistage.orchestrator.plan import OrchestratorConfig
from omnistage.wire.messages import (
    CLIENT,
    Arrived,
    CancelDone,
    ClientTook,
    Close,
    Command,
    Consumed,
    Emitted,
    Event,
    Feed,
    Grant,
    Release,
    ReplicaDown,
    Reply,
    Reported,
    Restarted,
    StageDone,
    StageFailed,
    Submit,
    WorkerEvent,
)

Slot = tuple[str, int, int, int]
"""(process, replica, epoch, stage id)"""


EdgeName = tuple[str, int, int, int]
"""(request id, attempt, source, target)"""


class Checks:
    """`book`: key of every payload -> live | released | lost."""

    def __init__(self, config: OrchestratorConfig, wants: dict[str, tuple[str, ...]], items: dict[int, int]) -> None:
        self.config = config
        self.wants = wants
        self.items = items
        self.open: dict[str, Arrived] = {}
        self.book: dict[int, str] = {}
        self.closed: dict[str, Close] = {}
        self.closes: Counter[str] = Counter()
        self.attempts: Counter[str] = Counter()
        self.submitted: set[tuple[str, int, int]] = set()
        self.slots: dict[Slot, dict[tuple[str, int], tuple[int, int]]] = {}
        self.replies: dict[tuple[str, int, int], list[Reply]] = {}
        self.credit: dict[EdgeName, int] = {}
        self.windows: dict[EdgeName, int] = {}
        self.acknowledged: dict[EdgeName, float] = {}
        self.offered: Counter[EdgeName] = Counter()
        self.client_nbytes: dict[str, dict[tuple[int, int], int]] = {}

    # ---- events

    def before(self, event: Event) -> None:
        """An event is about to be handled: slots return now."""
        match event:
            case Reported():
                for item in event.items:
                    self._reported(item, (event.process, event.replica, event.epoch))
            case ReplicaDown():
                for name in list(self.slots):
                    if name[:3] == (event.process, event.replica, event.epoch):
                        del self.slots[name]
            case ClientTook():
                edge = (event.request_id, 1 + self.attempts[event.request_id], event.source, CLIENT)
                self.acknowledged[edge] = self.acknowledged.get(edge, 0) + 1

    def after(self, event: Event, commands: list[Command]) -> None:
        """An event was handled: groups end together, and nobody is open beyond the deadline."""
        closed = {command.request_id for command in commands if isinstance(command, Close)}
        for arrived in self.open.values():
            companions = {name for name, other in self.open.items() if _group(other) == _group(arrived)}
            if arrived.request.group_id is not None and companions & closed:
                assert companions <= closed, "a group did not end together"
        if isinstance(event, Arrived):
            self.open[event.request.request_id] = event
        self.open = {name: arrived for name, arrived in self.open.items() if name not in closed}
        for name, arrived in self.open.items():
            assert event.now <= arrived.now + arrived.request.timeout_s, f"{name} is open beyond its deadline"

    def _reported(self, item: WorkerEvent, replica: tuple[str, int, int]) -> None:
        match item:
            case StageDone() | StageFailed() | CancelDone():
                key = (item.request_id, item.attempt)
                self.slots.get((*replica, item.stage_id), {}).pop(key, None)
                for plan in self.config.edges:
                    if plan.target == item.stage_id:  # it has consumed everything that will ever come
                        self.acknowledged[*key, plan.source, item.stage_id] = math.inf
            case Emitted(target=target) if target == CLIENT:
                edge = (item.request_id, item.attempt, item.source, CLIENT)
                self.offered[edge] = max(self.offered[edge], item.seq + 1)
            case Consumed():
                edge = (item.request_id, item.attempt, item.source, item.target)
                self.acknowledged[edge] = max(self.acknowledged.get(edge, 0), item.seq + 1)

    def emitted(self, items: list[WorkerEvent]) -> None:
        """A stage has said something: what is unacknowledged stays within the credit it was given."""
        for item in items:
            if isinstance(item, Emitted):
                edge = (item.request_id, item.attempt, item.source, item.target)
                assert item.seq < self.credit.get(edge, math.inf), f"{edge}: item {item.seq} was sent without credit"

    def took(self, reply: Reply) -> None:
        """A caller takes an item."""
        self.client_nbytes.get(reply.request_id, {}).pop((reply.source, reply.seq), None)

    # ---- commands

    def see(self, command: Command) -> None:
        match command:
            case Submit():
                self._submit(command)
            case Feed() | Grant():
                assert command.request_id not in self.closed, f"{type(command).__name__} after the end"
                if isinstance(command, Grant):
                    edge = (command.request_id, command.attempt, command.source, command.target)
                    self.credit[edge] += command.credits
                    assert self.credit[edge] <= self.windows[edge] + self.acknowledged[edge], "credit given twice"
                elif command.ref is not None:
                    assert self.book[command.ref.key] == "live", "fed after its release"
            case Release():
                assert self.book[command.ref.key] == "live", f"{command.ref.key} was released already"
                self.book[command.ref.key] = "released"
            case Reply():
                self._reply(command)
            case Restarted():
                self._restarted(command)
            case Close():
                self.closes[command.request_id] += 1
                self.closed[command.request_id] = command

    def _submit(self, command: Submit) -> None:
        name = command.request.request_id
        assert name not in self.closed, "submitted after the end"
        needed = self.needed(self.wants[name])
        assert command.stage_id in needed, "a pruned stage was submitted"
        assert set(command.active_targets) == self.targets(command.stage_id, self.wants[name]), "wrong active targets"
        key = (name, command.attempt, command.stage_id)
        assert key not in self.submitted, "submitted twice"
        self.submitted.add(key)
        for target, window in command.windows.items():
            edge = (name, command.attempt, command.stage_id, target)
            self.credit[edge] = self.windows[edge] = window
        here = self.slots.setdefault((command.process, command.replica, command.epoch, command.stage_id), {})
        plan = self.config.stage(command.stage_id)
        before = [key for key, order in here.items() if order < command.order]
        places = plan.max_num_seqs + plan.lookahead
        assert len(before) < places * (1 + plan.paused_per_place), (
            "a stage collects requests that wait for their callers"
        )
        waiting = sum(self._waits_for_its_caller(*key) for key in before)
        assert len(before) - waiting < places, "submitted beyond capacity and lookahead"
        here[name, command.attempt] = command.order

    def _waits_for_its_caller(self, name: str, attempt: int) -> bool:
        """Something was made that is not sent yet, or so much was sent that nothing more may be made."""
        for edge, offered in self.offered.items():
            if edge[:2] == (name, attempt):
                sent = len(self.replies.get((name, attempt, edge[2]), ()))
                if offered > sent or offered - self.acknowledged.get(edge, 0) >= self.windows.get(edge, math.inf):
                    return True
        return False

    def _reply(self, command: Reply) -> None:
        name = command.request_id
        assert name not in self.closed, "a reply after the end"
        assert command.final_output_type in self.wants[name], "a reply nobody wanted"
        said = self.replies.setdefault((name, command.attempt, command.source), [])
        assert command.seq == len(said), "replies out of order"
        assert not (said and said[-1].last), "a reply after the last"
        said.append(command)
        if command.ref is None:
            return
        assert self.book[command.ref.key] == "live", "replied after its release"
        assert command.ref.metadata["number"] == command.seq, "another item than was made"
        if command.final_output_type != "text":
            flying = self.client_nbytes.setdefault(name, {})
            flying[command.source, command.seq] = command.ref.nbytes
            total = sum(flying.values())
            assert total <= self.config.limits.client_window_nbytes or len(flying) == 1, "beyond the caller's window"

    def _restarted(self, command: Restarted) -> None:
        self.attempts[command.request_id] += 1
        assert self.attempts[command.request_id] == 1, "begun again twice"
        assert command.request_id not in self.closed
        self.client_nbytes.pop(command.request_id, None)

    # ---- the graph, told anew

    def needed(self, wants: tuple[str, ...]) -> set[int]:
        """Stages from which a wanted output can be reached, found by walking forward from each."""
        return {plan.stage_id for plan in self.config.stages if self._reaches(plan.stage_id, wants)}

    def targets(self, stage_id: int, wants: tuple[str, ...]) -> set[int]:
        inner = {edge.target for edge in self.config.edges if edge.source == stage_id}
        outer = {CLIENT} if self.config.stage(stage_id).final_output_type in wants else set()
        return {target for target in inner if self._reaches(target, wants)} | outer

    def _reaches(self, stage_id: int, wants: tuple[str, ...]) -> bool:
        own = self.config.stage(stage_id).final_output_type in wants
        return own or any(self._reaches(edge.target, wants) for edge in self.config.edges if edge.source == stage_id)

    # ---- afterwards

    def expect_closed_once(self) -> None:
        assert self.closes == dict.fromkeys(self.wants, 1), self.closes

    def expect_all_released(self) -> None:
        kept = [key for key, state in self.book.items() if state == "live"]
        assert not kept, f"never released: {kept}"

    def expect_complete(self) -> None:
        """What has finished has said everything that was made for it, to the last item."""
        for name, close in self.closed.items():
            needed = self.needed(self.wants[name]) if close.outcome == "finished" else set()
            for stage_id in needed:
                if CLIENT in self.targets(stage_id, self.wants[name]):
                    said = self.replies[name, close.attempts, stage_id]
                    assert said[-1].last
                    assert sum(reply.ref is not None for reply in said) == self.items[stage_id]

    def expect_finished(self) -> None:
        """Nothing has gone wrong with any request."""
        for name, close in self.closed.items():
            assert close.outcome == "finished", f"{name}: {close.error}"


def _group(arrived: Arrived) -> str | None:
    return arrived.request.group_id
