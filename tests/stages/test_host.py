"""One stage's mail and reports, as traces: what comes in, what the engine is told, what is said.

Faults pinned: mail of an older attempt reaches a newer one; a cancel stays unanswered; a request that cannot hand over
goes on computing; one request's fault, or the engine's own, ends the loop; a control call disturbs requests.
"""

from typing import Any

import pytest

from omnistage.config.stage import OutputEdge
from omnistage.core.errors import ConnectorError, ErrorInfo, InvalidRequestError
from omnistage.core.request import StageTimes, Usage
from omnistage.stages.base import StageOutput
from omnistage.stages.host import Fed, Prepared, StageHost
from omnistage.wire.messages import (
    CLIENT,
    Cancel,
    CancelDone,
    Consumed,
    Control,
    ControlDone,
    CopiedOut,
    Emitted,
    Feed,
    Grant,
    StageDone,
    StageFailed,
    Submit,
    WorkerEvent,
)
from tests.fakes import echo_config, request_of
from tests.stages.fakes import ControlledScript, ScriptedEngine, TightConnector, rows, text

WHERE: dict[str, Any] = {"process": "main", "replica": 0, "epoch": 1}


def submit(request_id: str = "r", attempt: int = 1, targets: tuple[int, ...] = (1,), **windows: int) -> Submit:
    window = {1: windows["window"]} if windows else {}
    return Submit(
        **WHERE,
        stage_id=0,
        request=request_of(request_id=request_id),
        attempt=attempt,
        order=(0, 0),
        active_targets=targets,
        windows=window,
    )


def feed(seq: int = 0, attempt: int = 1, request_id: str = "r") -> Feed:
    return Feed(**WHERE, request_id=request_id, attempt=attempt, source=5, target=0, seq=seq, ref=None, last=False)


def grant(attempt: int = 1) -> Grant:
    return Grant(**WHERE, request_id="r", attempt=attempt, source=0, target=1, credits=1)


def cancel(attempt: int = 1, request_id: str = "r") -> Cancel:
    return Cancel(**WHERE, request_id=request_id, attempt=attempt, stage_id=0)


class Stage:
    """A host over a scripted engine."""

    def __init__(self, engine: ScriptedEngine | None = None, *, room: int = 1000) -> None:
        self.engine = engine or ScriptedEngine()
        self.connector = TightConnector(room)
        config = echo_config(outputs=(OutputEdge(target=CLIENT), OutputEdge(target=1)))
        self.host = StageHost(config, self.engine, {"shm": self.connector})

    def step(self, *outputs: StageOutput | Exception) -> list[WorkerEvent]:
        """One step in which the engine says `outputs`."""
        if outputs:
            first = outputs[0]
            said = first if isinstance(first, Exception) else [o for o in outputs if isinstance(o, StageOutput)]
            self.engine.script.append(said)
        events = self.host.step()
        self.host.measure()
        return events

    def told(self) -> list[tuple[Any, ...]]:
        """What the engine was told since the last look."""
        calls, self.engine.calls = self.engine.calls, []
        return calls


def kinds(events: list[WorkerEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


def test_a_request_runs_from_submit_to_its_end() -> None:
    """Fault: usage, times, consumed inputs or the last item do not reach the report, or come out of order."""
    stage = Stage()
    stage.host.handle(submit())
    stage.host.handle(Fed(feed(), text("x")))
    assert stage.told() == [("add", "r", 1), ("feed", "r", 5, 0, False)]
    assert not stage.host.has_work()
    usage, times = Usage(completion_tokens=2), StageTimes(running_s=1.0)
    events = stage.step(
        StageOutput("r", text("a"), consumed=((5, 0),)),
        StageOutput("r", text("b"), finish_reason="length", usage=usage, times=times),
    )
    assert kinds(events) == ["Consumed", "Emitted", "Emitted", "StageDone"]
    consumed, first, second, done = events
    assert consumed == Consumed(request_id="r", attempt=1, source=5, target=0, seq=0)
    assert isinstance(first, Emitted)
    assert isinstance(second, Emitted)
    assert [(item.source, item.target, item.seq, item.last) for item in (first, second)] == [
        (0, 1, 0, False),
        (0, 1, 1, True),
    ]
    assert done == StageDone(request_id="r", attempt=1, stage_id=0, reason="length", usage=usage, times=times)
    assert stage.host.gauges()["held"] == 0


def test_a_request_whose_input_could_not_be_prepared_fails_alone() -> None:
    """Fault: the error is lost, changes its kind, or fails an attempt that began since."""
    stage = Stage()
    error = ErrorInfo.of(InvalidRequestError.of("prompt", "x", "a text"), stage="writer")
    stage.host.handle(Prepared(submit("bad", attempt=2), error=error))
    stage.host.handle(submit("new", attempt=3))
    stage.host.handle(Prepared(submit("new", attempt=2), error=error))
    assert stage.host.has_work()
    assert stage.step() == [StageFailed(request_id="bad", attempt=2, stage_id=0, error=error)]
    assert stage.host.debug_state()["requests"] == ["new"]


def test_a_request_that_cannot_hand_over_is_held_back_until_credit_comes() -> None:
    """Fault: the engine works for a request whose target has no window left, or never goes on with it."""
    stage = Stage()
    stage.host.handle(submit(window=1))
    assert kinds(stage.step(StageOutput("r", text("a")))) == ["Emitted"]
    assert kinds(stage.step(StageOutput("r", text("b")))) == []
    assert ("ready", "r", False) in stage.told()
    stage.host.handle(grant())
    assert stage.host.has_work()
    assert kinds(stage.step()) == ["Emitted"]
    assert stage.told() == [("ready", "r", True)]


def test_text_waits_for_more_only_while_more_is_being_made() -> None:
    """Fault: a caller waits for the last words of a stage that stands still, or is told every token of a quick one."""
    stage = Stage()
    stage.host.handle(submit(targets=(CLIENT,)))
    assert kinds(stage.step(StageOutput("r", text("a")))) == ["Emitted"]
    stage.engine.script.append([StageOutput("r", text("b"))])
    assert kinds(stage.step(StageOutput("r", text("c")))) == []
    assert kinds(stage.step()) == ["Emitted"]


def test_a_request_that_found_no_room_goes_on_when_room_comes() -> None:
    """Fault: a refused payload is lost, or tried without end while nothing has changed."""
    stage = Stage(room=0)
    stage.host.handle(submit())
    assert kinds(stage.step(StageOutput("r", rows(1)))) == []
    assert not stage.host.has_work()
    assert ("ready", "r", False) in stage.told()
    stage.connector.room = 1
    stage.host.room_freed()
    assert stage.host.has_work()
    assert kinds(stage.step()) == ["Emitted"]
    stage.host.room_freed()
    assert not stage.host.has_work()


def test_an_ended_request_is_not_spoken_of_to_the_engine_any_more() -> None:
    """Fault: set_ready for a request that the engine has forgotten."""
    stage = Stage()
    stage.host.handle(submit(window=1))
    stage.step(StageOutput("r", text("a")))
    stage.step(StageOutput("r", text("b")))
    stage.step(StageOutput("r", finish_reason="stop"))
    stage.told()
    stage.host.handle(grant())
    assert kinds(stage.step()) == ["Emitted", "StageDone"]
    assert stage.told() == []


def test_a_cancel_is_always_answered_and_forgets_the_request() -> None:
    """Fault: the machine waits for CancelDone of a request that the stage never saw or has ended."""
    stage = Stage()
    stage.host.handle(submit(window=1))
    stage.step(StageOutput("r", text("a")))
    stage.step(StageOutput("r", text("b")))
    stage.told()
    stage.host.handle(cancel())
    stage.host.handle(cancel())
    stage.host.handle(cancel(request_id="never seen"))
    assert stage.told() == [("cancel", "r")]
    assert kinds(stage.step()) == ["CancelDone"] * 3
    stage.host.handle(grant())
    assert kinds(stage.step(StageOutput("r", text("late")))) == []


def test_mail_of_another_attempt_does_not_reach_the_one_that_runs() -> None:
    """Fault: an item, a credit or a cancel of a dead attempt changes the new one."""
    stage = Stage()
    stage.host.handle(submit(attempt=2, window=1))
    stage.step(StageOutput("r", text("a")))
    stage.told()
    for late in (submit(attempt=1), Fed(feed(attempt=1)), grant(attempt=1), cancel(attempt=1)):
        stage.host.handle(late)
    assert stage.told() == []
    assert stage.step() == [CancelDone(request_id="r", attempt=1, stage_id=0)]
    assert kinds(stage.step(StageOutput("r", text("b")))) == []  # the credit was not counted


def test_a_newer_attempt_takes_the_place_of_an_older_one() -> None:
    """Fault: two attempts of one request in one engine."""
    stage = Stage()
    stage.host.handle(submit(attempt=1))
    stage.host.handle(submit(attempt=2))
    assert stage.told() == [("add", "r", 1), ("cancel", "r"), ("add", "r", 2)]


@pytest.mark.parametrize("call", ["add", "feed"])
def test_what_an_engine_refuses_fails_that_request(call: str) -> None:
    """Fault: an engine that raises where it should report ends the loop."""
    stage = Stage()
    if call == "feed":
        stage.host.handle(submit())
    stage.engine.refuses = InvalidRequestError("voice: 'x' is not accepted", field="voice")
    stage.host.handle(submit() if call == "add" else Fed(feed(), text("x")))
    [failed] = stage.step()
    assert isinstance(failed, StageFailed)
    assert (failed.error.code, failed.error.field, failed.error.stage) == ("invalid_request", "voice", "writer")
    assert ("cancel", "r") in stage.told()


def test_an_item_that_could_not_be_fetched_fails_its_request() -> None:
    """Fault: a lost payload leaves the request waiting until its deadline."""
    stage = Stage()
    stage.host.handle(submit())
    stage.host.handle(Fed(feed(), error=ErrorInfo.of(ConnectorError("gone"))))
    [failed] = stage.step()
    assert isinstance(failed, StageFailed)
    assert failed.error.code == "connector"


def test_an_error_of_the_engine_for_one_request_leaves_the_other_alone() -> None:
    """Fault: one failing request takes its neighbours along; its gathered parts are sent after the failure."""
    stage = Stage()
    stage.host.handle(submit("bad"))
    stage.host.handle(submit("good"))
    error = ErrorInfo("stage_failed", "told to fail", "writer")
    events = stage.step(StageOutput("bad", text("a")), StageOutput("good", text("b")), StageOutput("bad", error=error))
    assert kinds(events) == ["StageFailed", "Emitted"]
    assert [event.request_id for event in events if isinstance(event, StageFailed | Emitted)] == ["bad", "good"]


def test_a_capture_or_a_payload_that_cannot_be_sent_fails_its_request() -> None:
    """Fault: a payload that can never fit ends the loop or is tried for ever."""
    stage = Stage()
    stage.host.handle(submit())
    [failed] = stage.step(StageOutput("r", rows(1, too_large=True)))
    assert isinstance(failed, StageFailed)
    assert failed.error.code == "payload_too_large"
    stage.host.handle(submit("s", targets=(1, 99)))
    [failed] = stage.step()
    assert isinstance(failed, StageFailed)
    assert "no edge to stage 99" in failed.error.message


def test_a_select_hook_that_raises_fails_its_request() -> None:
    """Fault: a model's hook ends the loop."""

    def broken(*_arguments: object) -> None:
        raise KeyError("hidden")

    stage = Stage()
    config = echo_config(outputs=(OutputEdge(target=1, select="x:y"),))
    stage.host = StageHost(config, stage.engine, {"shm": stage.connector}, {1: broken})
    stage.host.handle(submit())
    [failed] = stage.step(StageOutput("r", text("a")))
    assert isinstance(failed, StageFailed)
    assert "what edge writer -> 1 selects failed" in failed.error.message


def test_a_step_that_fails_outside_any_request_fails_those_inside_and_goes_on() -> None:
    """Fault: the process dies, or a request that the engine had already ended loses its tail."""
    stage = Stage()
    stage.host.handle(submit("ended", window=1))
    stage.step(StageOutput("ended", text("a")), StageOutput("ended", text("b"), finish_reason="stop"))
    stage.host.handle(submit("inside"))
    events = stage.step(RuntimeError("out of memory"))
    assert [(event.request_id, type(event)) for event in events if isinstance(event, StageFailed)] == [
        ("inside", StageFailed)
    ]
    assert stage.host.gauges()["step_failures"] == 1
    stage.host.handle(submit("next"))
    assert kinds(stage.step(StageOutput("next", text("c")))) == ["Emitted"]


def test_an_engine_that_cannot_even_forget_does_not_end_the_loop() -> None:
    """Fault: the clean-up after a fault raises in its turn."""

    class Stubborn(ScriptedEngine):
        def cancel(self, request_id: str) -> None:
            raise RuntimeError("cannot forget")

    stage = Stage(Stubborn())
    stage.host.handle(submit())
    assert kinds(stage.step(RuntimeError("broken"))) == ["StageFailed"]


@pytest.mark.parametrize(
    ("engine", "name", "expected"),
    [
        (ControlledScript(), "reset_prefix_cache", {"freed": 3, "deep": True}),
        (ControlledScript(), "sleep", "no sleep; accepted: reset_prefix_cache"),
        (ScriptedEngine(), "sleep", "stage writer carries out no control calls; asked for: sleep"),
    ],
    ids=["known", "unknown", "none"],
)
def test_control_calls_are_answered(engine: ScriptedEngine, name: str, expected: object) -> None:
    """Fault: a control call without an answer holds its caller until the deadline."""
    stage = Stage(engine)
    stage.host.handle(Control(**WHERE, call_id="c", stage_id=0, name=name, arguments={"deep": True}))
    [done] = stage.step()
    assert isinstance(done, ControlDone)
    assert expected == (done.result if done.error is None else done.error.message)


def test_an_interruption_goes_straight_to_the_engine() -> None:
    """Fault: a cancel cannot end a long run."""
    stage = Stage()
    stage.host.interrupt("r")
    assert stage.told() == [("interrupt", "r")]


def test_what_was_copied_out_is_told_apart_from_what_was_consumed() -> None:
    """Fault: an arena keeps what its reader has copied; or its credit comes back before its bridge has taken it."""
    stage = Stage()
    stage.host.handle(submit())
    events = stage.step(StageOutput("r", consumed=((5, 0),), copied=((5, 2),)))
    who: dict[str, Any] = {"request_id": "r", "attempt": 1, "source": 5, "target": 0}
    assert events == [Consumed(**who, seq=0), CopiedOut(**who, seq=2)]
