"""How requests end, begin again, and take their groups with them."""

from typing import Any

import pytest

from omnistage.orchestrator.plan import Limits
from omnistage.wire.messages import Cancel, Close, Release, Reply, Restarted, Submit, WakeAt
from tests.orchestrator.traces import Trace, edge, expect_empty, kinds, of, ref, stage


def pair(**keys: Any) -> Trace:
    given = Trace(stage(0), stage(1, "audio"), edge(0, 1))
    given.arrive(wants=("audio",), **keys)
    given.emit(0, 1, 0, ref(1))
    return given


def die_again(given: Trace, process: str, epoch: int) -> list:
    """The replica comes back and dies once more."""
    given.tick(given.now + 40.0)
    given.up(process, epoch=epoch)
    return given.down(process, epoch=epoch)


def test_a_deadline_ends_the_request_and_names_the_open_stages() -> None:
    """Fault: a request whose stage hangs never ends."""
    given = pair(timeout_s=10.0)
    assert of(Close, given.tick(9.9)) == []
    told = given.tick(10.0)
    (close,) = of(Close, told)
    assert (close.outcome, close.error.code) == ("timed_out", "timed_out")
    assert "s0, s1" in close.error.message
    assert len(of(Cancel, told)) == 2


def test_a_request_cannot_ask_for_more_time_than_the_limit() -> None:
    """Fault: one caller's timeout of a year outlives every bound."""
    given = Trace(stage(0, "text"), limits=Limits(request_timeout_s=5.0))
    assert of(WakeAt, given.arrive(timeout_s=1e9)) == [WakeAt(time=5.0)]


def test_a_request_begins_again_after_a_death_and_the_old_attempt_is_cancelled_everywhere() -> None:
    """Fault: a dead worker loses requests that could be run again, or two attempts run at once."""
    given = pair(stream=True)
    told = given.down("p1")
    assert of(Close, told) == []
    assert of(Restarted, told) == [Restarted(request_id="r", attempt=2)]
    assert [(cancel.stage_id, cancel.attempt) for cancel in of(Cancel, told)] == [(0, 1)]
    assert [(submit.stage_id, submit.attempt) for submit in of(Submit, told)] == [(0, 2)]
    assert [release.ref.key for release in of(Release, told)] == [1]


def test_items_of_the_old_attempt_are_dropped_and_released() -> None:
    """Fault: both attempts feed the caller."""
    given = pair()
    given.down("p1")
    assert kinds(given.emit(0, 1, 1, ref(2), attempt=1)) == ["Release"]
    given.cancelled(0, attempt=1)
    assert given.tables["slots"] == 1
    given.emit(0, 1, 0, ref(3), attempt=2)
    assert given.tables["requests"]["r"]["attempt"] == 2


def test_a_streamed_request_does_not_begin_again_after_its_first_reply() -> None:
    """Fault: a listener hears the beginning twice."""
    given = pair(stream=True)
    given.emit(1, -1, 0, ref(2))
    told = given.down("p1")
    (close,) = of(Close, told)
    assert (close.outcome, close.error.code, close.error.stage) == ("failed", "stage_failed", "s1")
    assert "signal 9" in close.error.message
    assert of(Submit, told) == []


@pytest.mark.parametrize(
    ("told", "again"), [((True,), True), ((True, True), True), ((True, False), False), ((True, False, True), False)]
)
def test_a_streamed_request_that_was_told_only_how_far_it_is_begins_again(told: tuple[bool, ...], again: bool) -> None:
    """Fault: who has heard of steps, and of nothing that was made, gets an error where a whole answer could come; or begins again
    after a piece, because a step was told behind it."""
    given = pair(stream=True)
    for seq, progress in enumerate(told):
        given.emit(1, -1, seq, ref(2 + seq), progress=progress)
    commands = given.down("p1")
    assert (len(of(Restarted, commands)), len(of(Close, commands))) == ((1, 0) if again else (0, 1))


def test_a_whole_request_begins_again_after_replies_and_the_shell_is_told() -> None:
    """Fault: a whole answer begins with the pieces of an attempt that died."""
    given = pair()
    given.emit(1, -1, 0, ref(2))
    told = given.down("p1")
    assert kinds(told) == ["Cancel", "Restarted", "Submit", "Release"]
    assert of(Restarted, told) == [Restarted(request_id="r", attempt=2)]
    given.tick(1.0)
    given.up("p1", epoch=2)
    given.emit(0, 1, 0, ref(3), attempt=2)
    (reply,) = of(Reply, given.emit(1, -1, 0, ref(4), attempt=2, epoch=2))
    assert (reply.attempt, reply.seq) == (2, 0)


def test_a_request_present_at_two_deaths_is_not_run_a_third_time() -> None:
    """Fault: a request that kills its worker kills one after the other."""
    given = Trace(stage(0, "text"))
    given.arrive()
    assert of(Close, given.down("p0")) == []
    (close,) = of(Close, die_again(given, "p0", 2))
    assert close.outcome == "failed"
    assert "2 such deaths" in close.error.message
    assert close.attempts == 2
    assert given.tables["open"] == 0


def test_appended_input_makes_a_request_end_with_its_worker() -> None:
    """Fault: a conversation is run again without what was said later."""
    given = Trace(stage(0, "text"))
    given.arrive()
    given.append(0, ref(1))
    told = given.down("p0")
    assert kinds(told) == ["Close", "Release"]
    assert of(Close, told)[0].outcome == "failed"


def test_a_request_that_still_needs_the_dead_replica_begins_again_without_a_slot_there() -> None:
    """Fault: payloads that lived in the dead process are fed to its successor."""
    given = Trace(stage(0, process="p"), stage(1), stage(2, "text", process="p"), edge(0, 1), edge(1, 2))
    given.arrive()
    given.emit(0, 1, 0, ref(1), last=True)
    given.done(0)
    told = given.down("p")
    assert [cancel.stage_id for cancel in of(Cancel, told)] == [1]
    assert len(of(Restarted, told)) == 1


def test_a_request_that_needs_the_dead_replica_no_more_goes_on() -> None:
    """Fault: a death behind a request ends it."""
    given = pair()
    given.emit(0, 1, 1, ref(2), last=True)
    given.done(0)
    assert kinds(given.down("p0")) == []
    given.consume(0, 1, 1)
    given.emit(1, -1, 0, None, last=True)
    assert [close.outcome for close in of(Close, given.done(1))] == ["finished"]


def test_replays_take_the_place_in_the_total_order_they_had() -> None:
    """Fault: a request that begins again goes to the end of the queue."""
    given = Trace(stage(0, "text", max_num_seqs=1, lookahead=0))
    given.arrive("old")
    given.arrive("young")
    given.down("p0")
    given.tick(1.0)
    (submit,) = of(Submit, given.up("p0", epoch=2))
    assert (submit.request.request_id, submit.attempt, submit.epoch) == ("old", 2, 2)


@pytest.mark.parametrize("ending", ["abort", "fail", "time out"])
def test_a_group_ends_together(ending: str) -> None:
    """Fault: a companion works on for a parent that is gone."""
    given = Trace(stage(0, "text"))
    given.arrive("parent", group_id="g", timeout_s=10.0)
    given.arrive("companion", group_id="g")
    given.arrive("stranger", group_id="h")
    match ending:
        case "abort":
            told = given.abort("parent")
        case "fail":
            told = given.failed(0, "companion")
        case _:
            told = given.tick(10.0)
    assert [close.request_id for close in of(Close, told)] == ["parent", "companion"]
    assert len({close.outcome for close in of(Close, told)}) == 1
    assert given.tables["open"] == 1


def test_a_group_finishes_when_its_last_member_is_complete() -> None:
    """Fault: a member is reported as finished and its group fails afterwards."""
    given = Trace(stage(0, "text"))
    for name in ("parent", "companion"):
        given.arrive(name, group_id="g")
        given.emit(0, -1, 0, None, last=True, request_id=name)
    assert of(Close, given.done(0, "parent")) == []
    told = given.done(0, "companion")
    assert [(close.request_id, close.outcome) for close in of(Close, told)] == [
        ("parent", "finished"),
        ("companion", "finished"),
    ]
    expect_empty(given)


def test_what_waited_for_a_stage_that_never_started_is_released_at_the_end() -> None:
    """Fault: items of an aborted request stay in the arena because their target never saw them."""
    given = Trace(stage(0), stage(1, "text"), edge(0, 1), up=False)
    given.up("p0")
    given.arrive()
    given.emit(0, 1, 0, ref(1))
    given.emit(0, 1, 1, ref(2))
    assert [release.ref.key for release in of(Release, given.abort())] == [1, 2]
    given.cancelled(0)
    expect_empty(given)
