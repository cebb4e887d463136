"""The picture of a request's life, from events as the machine has them and the commands that a real one answers with."""

import pytest

from omnistage.core.errors import ErrorInfo, InvalidRequestError
from omnistage.core.payload import PayloadRef
from omnistage.core.request import StageTimes, Usage
from omnistage.obs.timeline import Arrow, Note, Picture, Span
from omnistage.orchestrator.machine import Orchestrator
from omnistage.orchestrator.plan import EdgePlan, Limits, OrchestratorConfig, StagePlan
from omnistage.runtime.event_log import EventLog, LogEntry
from omnistage.runtime.timeline import find_request, picture_of
from omnistage.wire.messages import (
    CLIENT,
    AbortRequested,
    Arrived,
    Emitted,
    Event,
    ItemArrived,
    ReplicaDown,
    ReplicaUp,
    Reported,
    StageDone,
    StageFailed,
    Tick,
    WorkerEvent,
)
from tests.fakes import request_of

CONFIG = OrchestratorConfig(
    stages=(StagePlan(0, "thinker", "a"), StagePlan(1, "speaker", "b", final_output_type="audio")),
    edges=(EdgePlan(0, 1),),
    processes={"a": 1, "b": 1},
    limits=Limits(restart_first_s=1.0),
)


def life(*events: Event) -> list[LogEntry]:
    """What a log of these events holds, after both processes have come up at 0."""
    machine = Orchestrator(CONFIG)
    entries = [LogEntry(now=0.0, event=None, commands=machine.start(0.0))]
    ups = [ReplicaUp(now=0.0, process=process, replica=0, epoch=1, capacity={}) for process in CONFIG.processes]
    return entries + [LogEntry(now=event.now, event=event, commands=machine.handle(event)) for event in (*ups, *events)]


def drawn(*events: Event) -> Picture:
    return picture_of(CONFIG, life(*events), "r")


def asked(now: float = 10.0, name: str = "r") -> Arrived:
    return Arrived(now=now, request=request_of(request_id=name, wants=("audio",)))


def report(
    process: str, now: float, *items: WorkerEvent, at_s: float = 0.0, arrivals: tuple[ItemArrived, ...] = ()
) -> Reported:
    return Reported(now=now, process=process, replica=0, epoch=1, items=items, at_s=at_s, arrivals=arrivals)


def emitted(source: int, *, last: bool = True, attempt: int = 1) -> Emitted:
    target = 1 if source == 0 else CLIENT
    ref = PayloadRef("shm", f"{source}/0", 1, attempt)
    return Emitted(request_id="r", attempt=attempt, source=source, target=target, seq=0, ref=ref, last=last)


def done(stage_id: int) -> StageDone:
    return StageDone(request_id="r", attempt=1, stage_id=stage_id, reason="stop", usage=Usage(), times=StageTimes())


def test_a_life_from_arrival_to_end() -> None:
    """Fault: lanes, spans or arrows that are not those of the request."""
    reached = ItemArrived(request_id="r", attempt=1, source=0, target=1, seq=0, at_s=10.3)
    picture = drawn(
        asked(),
        report("a", 10.25, emitted(0), done(0), at_s=10.2),
        report("b", 10.5, emitted(1), done(1), at_s=10.4, arrivals=(reached,)),
    )
    assert picture.lanes == ("thinker", "speaker", "client")
    assert picture.title == "request r: finished, 500 ms"
    assert [span for span in picture.spans if not span.quiet] == [
        Span(0, 0.0, 200.0, "works (stop)"),
        Span(1, 250.0, 400.0, "works (stop)"),
    ]
    assert picture.arrows == (Arrow(0, 200.0, 1, 300.0), Arrow(1, 400.0, 2, 500.0))
    assert picture.notes == (Note(0.0, "arrived"), Note(500.0, "finished"))


def test_others_are_not_in_the_picture() -> None:
    """Fault: a neighbour's items among one's own."""
    assert drawn(asked(9.0, "neighbour"), asked()).title == "request r: still open, 0 ms"
    neighbour = picture_of(CONFIG, life(asked(9.0, "neighbour"), asked(), report("a", 11.0, emitted(0))), "neighbour")
    assert neighbour.arrows == ()


def test_a_stage_that_is_down_makes_the_request_wait() -> None:
    """Fault: waiting looks like work."""
    picture = drawn(
        ReplicaDown(now=1.0, process="b", replica=0, epoch=1, reason="killed"),
        Tick(now=2.0),
        asked(),
        report("a", 10.25, emitted(0), at_s=10.2),
        ReplicaUp(now=11.0, process="b", replica=0, epoch=2, capacity={}),
    )
    assert Span(1, 250.0, 1000.0, "waits", quiet=True) in picture.spans


def test_a_death_begins_another_attempt() -> None:
    """Fault: a replayed request whose picture shows one run, or nothing of the death."""
    picture = drawn(
        asked(),
        report("a", 10.2, emitted(0)),
        ReplicaDown(now=10.3, process="b", replica=0, epoch=1, reason="killed"),
        report("a", 10.4, emitted(0, attempt=1)),
        report("a", 10.9, emitted(0, attempt=2)),
        Tick(now=11.5),
        ReplicaUp(now=12.0, process="b", replica=0, epoch=2, capacity={}),
    )
    assert picture.title == "request r: still open, 2000 ms, 2 attempts"
    assert [note.text for note in picture.notes] == ["arrived", "b/0 died", "attempt 2"]
    assert Span(1, 200.0, 300.0, "works (lost)", troubled=True) in picture.spans
    assert Span(0, 0.0, 300.0, "works (cancelled)", troubled=True) in picture.spans
    assert Span(1, 900.0, 2000.0, "waits", quiet=True) in picture.spans
    assert len(picture.arrows) == 2


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (AbortRequested(now=11.0, request_id="r", reason="enough"), "aborted (aborted): enough"),
        (
            report(
                "a",
                11.0,
                StageFailed(request_id="r", attempt=1, stage_id=0, error=ErrorInfo("stage_failed", "broken")),
            ),
            "failed (stage_failed): broken",
        ),
    ],
)
def test_how_it_ended_stands_in_the_title(event: Event, outcome: str) -> None:
    """Fault: a picture that does not say what went wrong."""
    picture = drawn(asked(), event)
    assert picture.title == f"request r: {outcome}, 1000 ms"
    assert picture.notes[-1].troubled
    assert picture.spans[-1].troubled


def test_a_request_is_named_by_how_its_id_begins(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Fault: the wrong request is drawn, or 32 characters have to be typed."""
    path = tmp_path_factory.mktemp("log") / "events"
    log = EventLog(path, CONFIG)
    for entry in life(asked(name="abc"), asked(name="abd"), asked(name="x")):
        log.record(entry.now, entry.event, entry.commands)
    log.close()
    assert find_request(path, "abc") == "abc"
    assert find_request(path, "x") == "x"
    assert find_request(path, "chatcmpl-abd") == "abd"  # as the answer says it
    for named, shown in (("ab", "abc, abd"), (None, "abc, abd, x"), ("y", "abc, abd, x")):
        with pytest.raises(InvalidRequestError, match=f"accepted: one of {shown}"):
            find_request(path, named)
