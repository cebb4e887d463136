"""The life of one request, read from a recorded event log, as a picture: stages as lanes, hand-overs as arrows.

A stage's lane shows for how long the request waited for it (from its first input on) and for how long it worked. The lowest lane
is the caller's. Draws what the machine heard and said; decides nothing. Times are milliseconds since the request's arrival.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import OmniRequest
from omnistage.obs.timeline import Arrow, Note, Picture, Span
from omnistage.orchestrator.plan import OrchestratorConfig
from omnistage.runtime.event_log import LogEntry, cut_of, read_head, read_log
from omnistage.wire.messages import (
    CLIENT,
    Arrived,
    Cancel,
    Close,
    Command,
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
    WorkerEvent,
)

MOST_NAMED = 20
_OF_ANSWERS = "chatcmpl-"
LEGEND = (
    "grey: waits for the stage; colour: the stage works on it; arrows: items on their way; dashes: what concerns all"
)

ItemKey = tuple[int, int, int, int]
"""(attempt, source, target, seq)"""


def find_request(path: Path, named: str | None) -> str:
    """The id of the one request in a log that `named` is the beginning of, or of the only one; an answer's id, which is
    `chatcmpl-` and that of its request, names it too. Raises InvalidRequestError that lists those there are."""
    ids = [entry.event.request.request_id for entry in read_log(path) if isinstance(entry.event, Arrived)]
    if named in ids:
        return named
    found = [
        request_id
        for request_id in dict.fromkeys(ids)
        if request_id.startswith((named or "").removeprefix(_OF_ANSWERS))
    ]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(found[:MOST_NAMED] or list(dict.fromkeys(ids))[:MOST_NAMED]) or "none, as no request has arrived"
    raise InvalidRequestError.of("request", named, f"one of {shown}")


def timeline(path: Path, request_id: str) -> Picture:
    """The picture of one request of a log."""
    return picture_of(read_head(path).config, read_log(path), request_id, cut=cut_of(path) is not None)


def picture_of(
    config: OrchestratorConfig, entries: Iterable[LogEntry], request_id: str, *, cut: bool = False
) -> Picture:
    """As `timeline`, of entries at hand. `cut`: they are not all that there were."""
    state = _LifeState(config, request_id)
    if cut:
        state.outcome = "still open where the record ends, which was full"
    for entry in entries:
        if entry.event is not None:
            state.heard(entry.event)
        for command in entry.commands:
            state.said(entry.now, command)
    return state.picture()


@dataclass(slots=True)
class _RunState:
    """A stage that works, since `start_s`, on a replica."""

    start_s: float
    process: str
    replica: int
    epoch: int


@dataclass(slots=True)
class _LifeState:
    """Gathers what concerns one request. `since_s`: from when on it waits for a stage; `emitted_s` and `sent_s`: items on
    their way."""

    config: OrchestratorConfig
    request_id: str
    request: OmniRequest | None = None
    arrived_s: float = 0.0
    outcome: str = "still open"
    attempts: int = 1
    lanes: dict[int, int] = field(default_factory=dict)
    since_s: dict[int, float] = field(default_factory=dict)
    runs: dict[int, _RunState] = field(default_factory=dict)
    emitted_s: dict[ItemKey, float] = field(default_factory=dict)
    sent_s: dict[ItemKey, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    last_s: float = 0.0

    # ---- what the machine heard ----

    def heard(self, event: Event) -> None:
        match event:
            case Arrived(request=request) if request.request_id == self.request_id:
                self._arrived(event.now, request)
            case Reported() if self.request is not None:
                self._reported(event)
            case ReplicaDown():
                dead = (event.process, event.replica, event.epoch)
                for stage_id, run in list(self.runs.items()):
                    if (run.process, run.replica, run.epoch) == dead:
                        self._note(event.now, f"{event.process}/{event.replica} died", troubled=True)
                        self._end(stage_id, event.now, "lost", troubled=True)

    def _arrived(self, now: float, request: OmniRequest) -> None:
        self.request, self.arrived_s, self.last_s = request, now, now
        stages = self.config.active(request.wants).stages
        self.lanes = {stage_id: lane for lane, stage_id in enumerate((*stages, CLIENT))}
        self._wait_for_entries(now)
        self._note(now, "arrived")

    def _reported(self, event: Reported) -> None:
        at_s = event.at_s or event.now
        for arrival in event.arrivals:
            if arrival.request_id == self.request_id:
                self._reached(arrival)
        for item in event.items:
            self._item(item, at_s, event.now)

    def _item(self, item: WorkerEvent, at_s: float, now: float) -> None:
        match item:
            case Emitted(request_id=self.request_id) if item.attempt == self.attempts and item.source in self.runs:
                self.emitted_s.setdefault((item.attempt, item.source, item.target, item.seq), at_s)
                self.since_s.setdefault(item.target, now)
            case StageDone(request_id=self.request_id) if item.attempt == self.attempts:
                self._end(item.stage_id, at_s, item.reason)
            case StageFailed(request_id=self.request_id) if item.attempt == self.attempts:
                self._end(item.stage_id, at_s, f"failed: {item.error.code}", troubled=True)

    def _reached(self, arrival: ItemArrived) -> None:
        key = (arrival.attempt, arrival.source, arrival.target, arrival.seq)
        if self.sent_s.pop(key, None) is not None:
            self._arrow(key, arrival.at_s)

    # ---- what it said ----

    def said(self, now: float, command: Command) -> None:
        match command:
            case Submit() if command.request.request_id == self.request_id:
                self._submitted(now, command)
            case Feed(request_id=self.request_id):
                self.sent_s[command.attempt, command.source, command.target, command.seq] = now
            case Reply(request_id=self.request_id):
                self._arrow((command.attempt, command.source, CLIENT, command.seq), now)
            case Cancel(request_id=self.request_id):
                self._end(command.stage_id, now, "cancelled", troubled=True)
            case Restarted(request_id=self.request_id):
                self._restarted(now, command.attempt)
            case Close(request_id=self.request_id):
                self._closed(now, command)

    def _submitted(self, now: float, command: Submit) -> None:
        stage_id = command.stage_id
        since_s = self.since_s.pop(stage_id, now)
        self._span(stage_id, since_s, now, "waits", quiet=True)
        self.runs[stage_id] = _RunState(now, command.process, command.replica, command.epoch)

    def _restarted(self, now: float, attempt: int) -> None:
        self.attempts = attempt
        self.since_s.clear()
        self._wait_for_entries(now)
        self._note(now, f"attempt {attempt}", troubled=True)

    def _closed(self, now: float, command: Close) -> None:
        self.outcome = command.outcome
        if command.error is not None:
            self.outcome = f"{command.outcome} ({command.error.code}): {command.error.message}"
        self._note(now, command.outcome.replace("_", " "), troubled=command.outcome != "finished")

    # ---- both ----

    def _wait_for_entries(self, now: float) -> None:
        assert self.request is not None
        self.since_s.update(dict.fromkeys(self.config.active(self.request.wants).entries, now))

    def _end(self, stage_id: int, at_s: float, how: str, *, troubled: bool = False) -> None:
        run = self.runs.pop(stage_id, None)
        if run is not None:
            place = "" if self.config.processes.get(run.process, 1) == 1 else f", replica {run.replica}"
            self._span(stage_id, run.start_s, at_s, f"works ({how}{place})", troubled=troubled)

    def _span(
        self, stage_id: int, start_s: float, end_s: float, label: str, *, quiet: bool = False, troubled: bool = False
    ) -> None:
        lane = self.lanes[stage_id]
        self.spans.append(Span(lane, self._ms(start_s), self._ms(max(start_s, end_s)), label, quiet, troubled))

    def _arrow(self, key: ItemKey, end_s: float) -> None:
        emitted_s = self.emitted_s.pop(key, None)
        if emitted_s is not None:
            _, source, target, _ = key
            start_ms, end_ms = self._ms(emitted_s), self._ms(max(emitted_s, end_s))
            self.arrows.append(Arrow(self.lanes[source], start_ms, self.lanes[target], end_ms))

    def _note(self, now: float, text: str, *, troubled: bool = False) -> None:
        self.notes.append(Note(self._ms(now), text, troubled))

    def _ms(self, at_s: float) -> float:
        self.last_s = max(self.last_s, at_s)
        return round(1000 * (at_s - self.arrived_s), 3)

    def picture(self) -> Picture:
        for key, sent_s in list(self.sent_s.items()):  # whose arrival nobody reported
            self._arrow(key, sent_s)
        for stage_id in list(self.runs):
            self._end(stage_id, self.last_s, "goes on")
        attempts = "" if self.attempts == 1 else f", {self.attempts} attempts"
        total_ms = self._ms(self.last_s)
        names = tuple("client" if stage == CLIENT else self.config.stage(stage).name for stage in self.lanes)
        return Picture(
            title=f"request {self.request_id}: {self.outcome}, {total_ms:.0f} ms{attempts}",
            legend=LEGEND,
            lanes=names,
            spans=tuple(self.spans),
            arrows=tuple(self.arrows),
            notes=tuple(self.notes),
        )
