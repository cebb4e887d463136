"""What callers ask, and the refusals."""

from omnistage.orchestrator.plan import Limits
from omnistage.wire.messages import Cancel, Close, Feed, Release, StopReplica, Submit
from tests.orchestrator.traces import Trace, edge, expect_empty, kinds, of, ref, stage


def test_an_arrival_is_submitted_to_its_entry_stage_with_what_is_wanted_of_it() -> None:
    """Fault: a stage captures outputs that nobody wants."""
    given = Trace(stage(0, "text"), stage(1, "audio"), edge(0, 1, window=3))
    (submit,) = of(Submit, given.arrive(wants=("audio",)))
    assert (submit.stage_id, submit.attempt, submit.active_targets, submit.windows) == (0, 1, (1,), {1: 3})


def test_stages_no_wanted_modality_needs_are_never_submitted() -> None:
    """Fault: the stages of all modalities run for a caller who wants text alone."""
    given = Trace(stage(0, "text"), stage(1, "audio"), edge(0, 1))
    (submit,) = of(Submit, given.arrive(wants=("text",)))
    assert submit.active_targets == (-1,)
    told = [*given.emit(0, 1, 0, ref(1)), *given.emit(0, -1, 0, ref(2), last=True), *given.done(0)]
    assert kinds(told) == ["Release", "Reply", "Release", "Close"]


def test_a_modality_nobody_makes_is_refused_by_name() -> None:
    """Fault: a wrong modality is accepted and nothing comes."""
    given = Trace(stage(0, "text"))
    for wants in (("smell",), ()):
        (close,) = of(Close, given.arrive(wants=wants))
        assert (close.outcome, close.error.code, close.error.field) == ("failed", "invalid_request", "wants")
        assert "text" in close.error.message
    expect_empty(given)


def test_a_full_queue_refuses_with_a_time_to_come_back() -> None:
    """Fault: the queue grows without bound."""
    given = Trace(
        stage(0, "text", max_num_seqs=1, lookahead=0), limits=Limits(max_queued_requests=2, retry_after_s=3.0)
    )
    for name in ("running", "first", "second"):
        assert of(Close, given.arrive(name)) == []
    (close,) = of(Close, given.arrive("third"))
    assert (close.request_id, close.error.code, close.error.retry_after_s) == ("third", "queue_full", 3.0)
    assert given.tables["queued"] == 2


def test_what_waits_for_a_stage_that_is_not_up_is_bounded_without_its_places() -> None:
    """Fault: places that nobody has yet count as if they were free."""
    given = Trace(stage(0, "text"), limits=Limits(max_queued_requests=2), up=False)
    assert [of(Close, given.arrive(name)) == [] for name in ("a", "b", "c")] == [True, True, False]


def test_requests_that_overtake_are_bounded_like_those_that_wait() -> None:
    """Fault: whoever asks with ever higher priority goes past the bound of the queue, and fills the stage instead."""
    given = Trace(stage(0, "text", max_num_seqs=1, lookahead=1), limits=Limits(max_queued_requests=3))
    admitted = [of(Close, given.arrive(f"r{index}", priority=-index)) == [] for index in range(8)]
    assert admitted == [True] * 5 + [False] * 3
    given.emit(0, -1, 0, None, last=True, request_id="r4")
    given.done(0, "r4")
    assert of(Close, given.arrive("next", priority=-9)) == []


def test_requests_that_wait_in_the_middle_are_bounded_like_those_that_wait_at_the_door() -> None:
    """Fault: a fast stage in front of a slow one takes request after request, and all of them wait behind it."""
    given = Trace(
        stage(0, max_num_seqs=1, lookahead=0),
        stage(1, "audio", max_num_seqs=1, lookahead=0),
        edge(0, 1),
        limits=Limits(max_queued_requests=2),
    )
    admitted = []
    for index in range(6):
        name = f"r{index}"
        admitted.append(of(Close, given.arrive(name, wants=("audio",))) == [])
        if admitted[-1]:
            given.emit(0, 1, 0, ref(1, owner=name), last=True, request_id=name)
            given.done(0, name)
    assert admitted == [True] * 4 + [False] * 2
    assert given.tables["queued"] == 0


def test_a_second_request_with_an_open_id_is_dropped_and_counted() -> None:
    """Fault: two requests under one id mix their outputs, or the first is closed for the second."""
    given = Trace(stage(0, "text"))
    given.arrive()
    assert given.arrive() == []
    given.abort()
    assert given.arrive() == []  # the stage still holds the first
    given.cancelled(0)
    assert len(of(Submit, given.arrive())) == 1
    assert given.tables["duplicate_arrivals"] == 2


def test_a_queued_request_that_is_aborted_never_starts() -> None:
    """Fault: an abort is forgotten and the work is done for nobody."""
    given = Trace(stage(0, "text"), up=False)
    given.arrive()
    assert kinds(given.abort()) == ["Close"]
    assert of(Submit, given.up("p0")) == []
    expect_empty(given)


def test_an_abort_cancels_exactly_the_stages_that_run() -> None:
    """Fault: work goes on after the caller has left, or stages that never started are cancelled."""
    given = Trace(stage(0, "text"), stage(1), stage(2, "audio"), edge(0, 1), edge(1, 2))
    given.arrive(wants=("audio",))
    given.emit(0, 1, 0, None, last=True)
    given.done(0)
    told = given.abort()
    assert [cancel.stage_id for cancel in of(Cancel, told)] == [1]
    (close,) = of(Close, told)
    assert (close.outcome, close.error.code, close.error.message) == ("aborted", "aborted", "aborted by the caller")


def test_an_abort_of_an_unknown_request_has_no_effect() -> None:
    """Fault: an abort that crosses the end of its request gives a second terminal state."""
    assert Trace(stage(0, "text")).abort("gone") == []


def test_appended_input_is_fed_to_every_entry_stage_and_released_after_the_last() -> None:
    """Fault: only one entry gets it, or the first that has read it frees it for all."""
    given = Trace(stage(0), stage(1), stage(2, "text"), edge(0, 2), edge(1, 2))
    given.arrive()
    told = given.append(0, ref(1))
    assert [(feed.source, feed.target, feed.seq) for feed in of(Feed, told)] == [(-1, 0, 0), (-1, 1, 0)]
    assert of(Release, given.consume(-1, 0, 0)) == []
    assert [release.ref.key for release in of(Release, given.consume(-1, 1, 0))] == [1]


def test_appended_input_waits_for_its_stage_and_is_not_taken_twice() -> None:
    """Fault: input that comes while the request is queued is lost, or doubled."""
    given = Trace(stage(0, "text"), up=False)
    given.arrive()
    given.append(0, ref(1))
    assert given.append(0, ref(1)) == []
    assert [release.ref.key for release in of(Release, given.append(0, ref(7)))] == [7]
    assert kinds(given.up("p0")) == ["Submit", "Feed"]


def test_a_gap_in_appended_input_fails_the_request() -> None:
    """Fault: a piece of the input is missing and the answer is about the rest."""
    given = Trace(stage(0, "text"))
    given.arrive()
    told = given.append(1, ref(1))
    (close,) = of(Close, told)
    assert (close.error.code, close.error.field) == ("invalid_request", "seq")
    assert [release.ref.key for release in of(Release, told)] == [1]


def test_input_for_a_request_that_has_ended_is_released() -> None:
    """Fault: late input stays in the arena for ever."""
    given = Trace(stage(0, "text"))
    assert kinds(given.append(0, ref(1))) == ["Release"]


def test_a_group_is_refused_whole() -> None:
    """Fault: a companion alone is computed when its parent was refused."""
    given = Trace(stage(0, "text"))
    given.arrive("parent", group_id="g")
    told = given.arrive("companion", wants=("smell",), group_id="g")
    assert [close.request_id for close in of(Close, told)] == ["companion", "parent"]


def test_a_full_queue_takes_the_companions_of_what_it_took() -> None:
    """Fault: half a group is admitted."""
    given = Trace(stage(0, "text"), limits=Limits(max_queued_requests=1), up=False)
    given.arrive("parent", group_id="g")
    assert of(Close, given.arrive("companion", group_id="g")) == []
    assert len(of(Close, given.arrive("stranger", group_id="h"))) == 1


def test_a_shutdown_refuses_what_is_new_and_lets_open_requests_end() -> None:
    """Fault: a stop throws away answers that were nearly done."""
    given = Trace(stage(0, "text"))
    given.arrive("open")
    assert of(StopReplica, given.shut_down(30.0)) == []
    (close,) = of(Close, given.arrive("late"))
    assert close.error.code == "closed"
    given.emit(0, -1, 0, None, last=True, request_id="open")
    told = given.done(0, "open")
    assert kinds(told) == ["Close", "StopReplica"]
    assert of(StopReplica, told)[0].kill is False
    expect_empty(given)


def test_what_is_open_when_the_drain_ends_is_cut_off() -> None:
    """Fault: a shutdown waits for ever for one long request, or is told as if the caller had ended it."""
    given = Trace(stage(0, "text"))
    given.arrive("a", group_id="g")
    given.arrive("b", group_id="g")
    given.shut_down(30.0)
    told = given.tick(30.0)
    assert kinds(told) == ["Close", "Cancel", "Close", "Cancel", "StopReplica"]
    assert {(close.outcome, close.error.code) for close in of(Close, told)} == {("failed", "closed")}
    given.down("p0")
    expect_empty(given)


def test_a_second_shutdown_moves_the_deadline() -> None:
    """Fault: an impatient second signal has no effect."""
    given = Trace(stage(0, "text"))
    given.arrive()
    given.shut_down(30.0)
    given.shut_down(1.0)
    assert len(of(Close, given.tick(1.0))) == 1
    assert kinds(given.shut_down(5.0)) == []


def test_an_idle_machine_stops_at_once() -> None:
    """Fault: a shutdown without work waits for its deadline."""
    assert kinds(Trace(stage(0, "text")).shut_down(30.0)) == ["StopReplica"]
