"""What replicas report of requests."""

from typing import Any

import pytest

from omnistage.wire.messages import Cancel, Close, ControlDone, Emitted, Feed, Grant, Release, Reply
from tests.orchestrator.traces import Trace, edge, expect_empty, kinds, of, ref, stage, stage_done


def released(commands: list) -> list[int]:
    return [release.ref.key for release in of(Release, commands)]


def pair(window: int = 4, wants: tuple[str, ...] = ("audio",), **keys: Any) -> Trace:
    """Two stages, one open request, the first stage running."""
    given = Trace(stage(0, "text"), stage(1, "audio"), edge(0, 1, window=window))
    given.arrive(wants=wants, **keys)
    return given


def fork() -> Trace:
    """One source with two targets that end in two modalities."""
    given = Trace(stage(0), stage(1, "audio"), stage(2, "image"), edge(0, 1, window=2), edge(0, 2, window=3))
    given.arrive(wants=("audio", "image"))
    return given


def test_consumed_items_free_their_refs_and_give_credit_to_their_own_edge() -> None:
    """Fault: the credit of one target is given for another, so that the slower one is overrun."""
    given = fork()
    for seq in range(2):
        given.emit(0, 1, seq, ref(seq))
        given.emit(0, 2, seq, ref(10 + seq))
    told = given.consume(0, 2, 1)
    assert [(grant.source, grant.target, grant.credits) for grant in of(Grant, told)] == [(0, 2, 2)]
    assert released(told) == [10, 11]


def test_credit_is_given_once() -> None:
    """Fault: a repeated acknowledgement opens the window wider than it is."""
    given = pair()
    given.emit(0, 1, 0, ref(1))
    assert [grant.credits for grant in of(Grant, given.consume(0, 1, 0))] == [1]
    assert given.consume(0, 1, 0) == []


def test_what_was_copied_out_is_released_and_gives_no_credit() -> None:
    """Fault: a request that is paused keeps room from others, or its source goes on sending to it."""
    given = pair()
    for seq in range(3):
        given.emit(0, 1, seq, ref(seq))
    told = given.copied_out(0, 1, 1)
    assert (kinds(told), released(told)) == (["Release", "Release"], [0, 1])
    assert given.copied_out(0, 1, 1) == []
    told = given.consume(0, 1, 2)
    assert [grant.credits for grant in of(Grant, told)] == [3]
    assert released(told) == [2]


def test_a_copy_of_one_target_leaves_the_other_its_ref() -> None:
    """Fault: a target that copies frees what another still reads."""
    given = fork()
    given.emit(0, 1, 0, ref(1))
    given.emit(0, 2, 0, ref(1))
    assert released(given.copied_out(0, 1, 0)) == []
    assert released(given.consume(0, 2, 0)) == [1]
    assert given.copied_out(0, 1, 0, "gone") == []


def test_a_ref_of_two_targets_is_released_after_the_last_of_them() -> None:
    """Fault: the faster target frees what the slower one still reads."""
    given = fork()
    given.emit(0, 1, 0, ref(1))
    given.emit(0, 2, 0, ref(1))
    assert released(given.consume(0, 1, 0)) == []
    assert released(given.consume(0, 2, 0)) == [1]


def test_a_dead_consumer_counts_as_done() -> None:
    """Fault: a target that has ended early keeps its source waiting for credit, or its refs for ever."""
    given = fork()
    given.emit(0, 1, 0, ref(1))
    given.emit(1, -1, 0, None, last=True)
    told = given.done(1)
    assert (released(told), [grant.credits for grant in of(Grant, told)]) == ([1], [1])
    told = given.emit(0, 1, 1, ref(2))
    assert (released(told), [grant.target for grant in of(Grant, told)]) == ([2], [1])


def test_one_ref_reported_for_a_dead_and_a_living_target_at_once_stays() -> None:
    """Fault: the first delivery of a shared ref releases it before the second is looked at."""
    given = fork()
    given.emit(0, 1, 0, ref(1))
    given.emit(1, -1, 0, None, last=True)
    given.done(1)
    both = [
        Emitted(request_id="r", attempt=1, source=0, target=target, seq=seq, ref=ref(5), last=False)
        for target, seq in ((1, 1), (2, 0))
    ]
    told = given.report("p0", *both)
    assert released(told) == []
    assert len(of(Feed, told)) == 1
    assert released(given.consume(0, 2, 0)) == [5]


@pytest.mark.parametrize("keys", [{"request_id": "gone"}, {"attempt": 2}, {"epoch": 7}])
def test_what_comes_for_a_stranger_is_released_and_changes_nothing(keys: dict) -> None:
    """Fault: an item of an ended request, another attempt or a dead replica is taken for this one."""
    given = pair()
    told = given.emit(0, 1, 0, ref(1), **keys)
    assert (kinds(told), released(told)) == (["Release"], [1])


def test_what_comes_after_the_end_is_released() -> None:
    """Fault: a late item is delivered after the terminal state, or its payload is kept."""
    given = pair()
    given.abort()
    assert kinds(given.emit(0, 1, 0, ref(1))) == ["Release"]


def test_a_report_from_a_replica_that_does_not_exist_is_released() -> None:
    """Fault: a wrong name in a report brings the machine down."""
    given = pair()
    item = Emitted(request_id="r", attempt=1, source=0, target=1, seq=0, ref=ref(1), last=False)
    assert kinds(given.report("nowhere", item)) == ["Release"]
    assert kinds(given.report("p0", item, replica=5)) == ["Release"]


def test_a_number_seen_before_is_dropped_and_its_ref_released_only_if_it_is_another() -> None:
    """Fault: a repeated message is delivered twice, or frees a payload that is being read."""
    given = pair()
    given.emit(0, 1, 0, ref(1))
    assert given.emit(0, 1, 0, ref(1)) == []
    assert released(given.emit(0, 1, 0, ref(2))) == [2]
    given.consume(0, 1, 0)
    assert given.emit(0, 1, 0, ref(1)) == []


def test_a_gap_fails_the_request_at_once_and_names_the_stage() -> None:
    """Fault: a lost chunk hangs the request until its deadline, or a hole is played to the caller."""
    given = pair()
    given.emit(0, 1, 0, ref(1))
    told = given.emit(0, 1, 2, ref(3))
    (close,) = of(Close, told)
    assert (close.outcome, close.error.code, close.error.stage) == ("failed", "stage_failed", "s0")
    assert "item 2 for s1 came where 1 was due" in close.error.message
    assert [cancel.stage_id for cancel in of(Cancel, told)] == [0, 1]
    assert released(told) == [3]
    assert released(given.cancelled(1)) == [1]
    given.cancelled(0)
    expect_empty(given)


def test_an_item_after_the_last_one_fails_the_request() -> None:
    """Fault: a stage that goes on after its end is believed."""
    given = pair(wants=("text",))
    given.emit(0, -1, 0, ref(1), last=True)
    assert len(of(Close, given.emit(0, -1, 1, ref(2)))) == 1


def test_a_stage_that_ends_before_its_last_item_fails_the_request_at_once() -> None:
    """Fault: a target waits for ever for the rest of its input."""
    given = pair(wants=("text", "audio"))
    given.emit(0, 1, 0, ref(1), last=True)
    (close,) = of(Close, given.done(0))
    assert (close.error.stage, close.error.message) == ("s0", "ended before its last item for the caller")


def test_a_stage_that_fails_ends_the_request_with_its_error() -> None:
    """Fault: the error of a stage is lost, or the other stages go on working."""
    given = pair()
    given.emit(0, 1, 0, ref(1))
    told = given.failed(1)
    (close,) = of(Close, told)
    assert (close.outcome, close.error.stage, close.error.message) == ("failed", "s1", "ValueError: no")
    assert [cancel.stage_id for cancel in of(Cancel, told)] == [0]
    assert released(told) == [1]
    given.cancelled(0)
    expect_empty(given)


def test_cancel_done_returns_the_slot_and_what_was_fed_to_it() -> None:
    """Fault: every cancelled request takes a place and some memory with it for ever."""
    given = pair()
    given.emit(0, 1, 0, ref(1))
    assert released(given.abort()) == []  # the stage may still be reading
    assert released(given.cancelled(1)) == [1]
    given.cancelled(0)
    expect_empty(given)


def test_a_cancelled_stage_that_ends_by_itself_has_let_go_as_well() -> None:
    """Fault: an end that crosses the cancel is taken for an answer to a request that is gone."""
    given = pair()
    given.emit(0, 1, 0, ref(1))
    given.abort()
    assert kinds(given.done(0)) == []
    assert kinds(given.failed(1)) == ["Release"]
    assert kinds(given.cancelled(0)) == []
    expect_empty(given)


def test_a_cancelled_stage_frees_what_it_still_consumes() -> None:
    """Fault: credit is granted to a request that has ended."""
    given = pair()
    given.emit(0, 1, 0, ref(1))
    given.abort()
    assert kinds(given.consume(0, 1, 0)) == ["Release"]


def test_an_answer_to_a_cancel_that_nobody_sent_changes_nothing() -> None:
    """Fault: a stray answer frees a running request's place."""
    given = pair()
    assert given.cancelled(0) == []
    assert given.tables["slots"] == 1


def test_reports_about_requests_nobody_knows_change_nothing() -> None:
    """Fault: a late word about an ended request brings the machine down."""
    given = pair()
    told = [
        *given.consume(0, 1, 0),
        *given.done(1),
        *given.failed(1),
        *given.cancelled(1),
        *given.consume(7, 0, 0),
        *given.say(0, ControlDone(call_id="gone", stage_id=0)),
    ]
    assert told == []


def test_the_request_finishes_after_its_last_stage_with_all_figures() -> None:
    """Fault: the terminal state comes before the last stage's end, or the usage of a stage is lost."""
    given = pair(wants=("text", "audio"))
    given.emit(0, -1, 0, ref(1), last=True)
    given.emit(0, 1, 0, ref(2), last=True)
    assert of(Close, given.done(0)) == []
    given.emit(1, -1, 0, ref(3), last=True)
    (close,) = of(Close, given.done(1))
    assert (close.outcome, close.error, close.attempts) == ("finished", None, 1)
    assert {stage_id: usage.completion_tokens for stage_id, usage in close.usage.items()} == {0: 1, 1: 2}
    assert close.reasons == {0: "stop", 1: "stop"}
    assert close.times[1].running_s == 1.0
    expect_empty(given)


def test_one_report_is_taken_in_its_own_order() -> None:
    """Fault: the end of a stage is seen before the items that came with it."""
    given = pair(wants=("text",))
    last = Emitted(request_id="r", attempt=1, source=0, target=-1, seq=0, ref=ref(1), last=True)
    assert kinds(given.report("p0", last, stage_done(0))) == ["Reply", "Close", "Release"]


def test_items_of_a_modality_reach_the_caller_in_the_order_they_were_made() -> None:
    """Fault: the pieces of an answer are mixed up."""
    given = pair(wants=("text",))
    told = [command for seq in range(5) for command in given.emit(0, -1, seq, ref(seq))]
    assert [reply.seq for reply in of(Reply, told)] == [0, 1, 2, 3, 4]


def test_a_source_beyond_its_window_is_counted() -> None:
    """Fault: a stage that ignores its credit goes unnoticed."""
    given = pair(window=1)
    given.emit(0, 1, 0, ref(1))
    assert given.tables["window_overruns"] == 0
    given.emit(0, 1, 1, ref(2))
    assert given.tables["window_overruns"] == 1
    given.emit(0, 1, 2, None, last=True)  # the bare end needs no credit
    assert given.tables["window_overruns"] == 1
