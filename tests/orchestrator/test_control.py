"""Control calls."""

from omnistage.core.errors import ErrorInfo
from omnistage.wire.messages import Control, ControlReply, WakeAt
from tests.orchestrator.traces import Trace, expect_empty, kinds, of, stage


def two_stages() -> Trace:
    return Trace(stage(0, "text"), stage(1, "audio"), replicas={"p0": 2})


def test_every_live_replica_of_every_stage_is_asked_and_the_reply_comes_after_the_last() -> None:
    """Fault: a replica is left out, or the reply comes before all have answered."""
    given = two_stages()
    asked = of(Control, given.call("profile", arguments={"on": True}))
    assert [(control.stage_id, control.replica, control.name) for control in asked] == [
        (0, 0, "profile"),
        (0, 1, "profile"),
        (1, 0, "profile"),
    ]
    assert asked[0].arguments == {"on": True}
    assert given.answer(0, "a") == []
    assert given.answer(1, "c") == []
    assert given.answer(0, "a again") == []
    (reply,) = of(ControlReply, given.answer(0, "b", replica=1))
    assert reply == ControlReply(call_id="c", results={"0/0": "a", "1/0": "c", "0/1": "b"})
    expect_empty(given)


def test_named_stages_alone_are_asked_also_when_they_sleep() -> None:
    """Fault: a sleeping stage cannot be woken."""
    given = two_stages()
    given.becomes("sleeping", "p1")
    asked = of(Control, given.call("wake_up", stage_ids=(1, 1)))
    assert [(control.stage_id, control.replica) for control in asked] == [(1, 0)]


def test_an_unknown_stage_is_refused_by_name() -> None:
    """Fault: a wrong stage id is silently left out."""
    (reply,) = of(ControlReply, two_stages().call(stage_ids=(0, 9)))
    assert reply.error.code == "invalid_request"
    assert "[9]" in reply.error.message


def test_the_first_error_is_the_calls_and_the_results_stay() -> None:
    """Fault: one stage's error hides what the others did."""
    given = two_stages()
    given.call(stage_ids=(0,))
    given.answer(0, error=ErrorInfo("internal", "first"))
    (reply,) = of(ControlReply, given.answer(0, "b", replica=1, error=ErrorInfo("internal", "second")))
    assert (reply.error.message, reply.results) == ("first", {"0/0": None, "0/1": "b"})


def test_a_stage_without_a_replica_makes_the_reply_an_error() -> None:
    """Fault: a call to a stage that is down waits for its deadline, or succeeds."""
    given = Trace(stage(0, "text"), up=False)
    (reply,) = of(ControlReply, given.call())
    assert (reply.error.code, reply.error.stage) == ("stage_unavailable", "s0")
    expect_empty(given)


def test_a_replica_that_dies_answers_no_more() -> None:
    """Fault: the call waits for the dead."""
    given = two_stages()
    given.call(stage_ids=(0, 1))
    given.answer(0, "b", replica=1)
    given.answer(1, "c")
    (reply,) = of(ControlReply, given.down("p0"))
    assert reply.error.code == "stage_unavailable"
    assert "signal 9" in reply.error.message
    assert reply.results == {"0/1": "b", "1/0": "c"}


def test_the_death_of_another_replica_leaves_a_call_open() -> None:
    """Fault: a call ends early because something else died."""
    given = two_stages()
    given.call(stage_ids=(1,))
    assert kinds(given.down("p0")) == []
    assert len(given.answer(1)) > 0


def test_a_call_is_answered_at_its_deadline_with_what_there_is() -> None:
    """Fault: a stage that is stuck holds the caller of a control call for ever."""
    given = two_stages()
    assert of(WakeAt, given.call(stage_ids=(0,), timeout_s=3.0)) == [WakeAt(time=3.0)]
    given.answer(0, "a")
    (reply,) = of(ControlReply, given.tick(3.0))
    assert (reply.error.code, reply.results) == ("timed_out", {"0/0": "a"})
    assert "0/1" in reply.error.message
    assert given.answer(0, "late", replica=1) == []


def test_a_call_under_an_id_in_use_is_dropped() -> None:
    """Fault: two calls share one answer."""
    given = two_stages()
    given.call()
    assert given.call() == []


def test_calls_do_not_wait_for_requests() -> None:
    """Fault: a full stage does not hear control calls."""
    given = Trace(stage(0, "text", max_num_seqs=1, lookahead=0))
    given.arrive("a")
    given.arrive("b")
    assert kinds(given.call()) == ["Control"]
