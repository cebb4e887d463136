"""What goes to the caller, and callers that do not take it."""

from omnistage.orchestrator.plan import Limits
from omnistage.wire.messages import Cancel, Close, Grant, Release, Reply, Submit, WakeAt
from tests.orchestrator.traces import Trace, expect_empty, kinds, of, ref, stage

SMALL = Limits(client_window_nbytes=100, client_window_items=3, client_stall_s=5.0, request_timeout_s=60.0)


def speaking(limits: Limits = SMALL) -> Trace:
    given = Trace(stage(0, "audio"), limits=limits)
    given.arrive(wants=("audio",))
    return given


def replied(commands: list) -> list[int]:
    return [reply.seq for reply in of(Reply, commands)]


def test_text_is_sent_at_once_whatever_the_caller_takes() -> None:
    """Fault: text waits for a window meant for media, or its stage for credit."""
    given = Trace(stage(0, "text"), limits=SMALL)
    given.arrive()
    for seq in range(9):
        (reply,) = of(Reply, given.emit(0, -1, seq, ref(seq, nbytes=10**6)))
        assert (reply.seq, reply.final_output_type, reply.attempt) == (seq, "text", 1)
    assert kinds(given.take(0, 0)) == []


def test_what_was_sent_is_released_whether_or_not_it_is_taken() -> None:
    """Fault: callers that take nothing fill the arena that all others need."""
    given = speaking()
    told = given.emit(0, -1, 0, ref(1, nbytes=60))
    assert kinds(told) == ["Reply", "Release"]
    assert given.tables["refs_held"] == 0


def test_others_have_the_place_of_a_request_that_waits_for_its_caller() -> None:
    """Fault: as many callers as a stage has places, which read slowly or not at all, keep everybody else out of it."""
    given = Trace(stage(0, "audio", max_num_seqs=1, lookahead=0), limits=SMALL)
    given.arrive("slow", wants=("audio",))
    assert of(Submit, given.arrive("next", wants=("audio",))) == []
    given.emit(0, -1, 0, ref(1, nbytes=60), request_id="slow")
    (submit,) = of(Submit, given.emit(0, -1, 1, ref(2, nbytes=60), request_id="slow"))
    assert submit.request.request_id == "next"
    given.take(0, 0, request_id="slow")
    assert of(Submit, given.arrive("third", wants=("audio",))) == []


def test_media_are_held_while_the_window_is_full_and_sent_when_there_is_room() -> None:
    """Fault: what a slow caller does not read piles up in the server."""
    given = speaking()
    assert replied(given.emit(0, -1, 0, ref(1, nbytes=60))) == [0]
    assert replied(given.emit(0, -1, 1, ref(2, nbytes=60))) == []
    told = given.take(0, 0)
    assert kinds(told) == ["Grant", "Reply", "Release"]
    assert [release.ref.key for release in of(Release, told)] == [2]


def test_an_item_larger_than_the_window_passes_alone() -> None:
    """Fault: one large picture never reaches its caller."""
    assert replied(speaking().emit(0, -1, 0, ref(1, nbytes=10**9))) == [0]


def test_taking_gives_credit_once() -> None:
    """Fault: an item taken twice lets the source go beyond its window."""
    given = speaking()
    given.emit(0, -1, 0, ref(1, nbytes=1))
    (grant,) = of(Grant, given.take(0, 0))
    assert (grant.source, grant.target, grant.credits) == (0, -1, 1)
    assert given.take(0, 0) == []
    assert given.take(0, 7) == []
    assert given.take(0, 0, request_id="gone") == []


def test_what_was_taken_of_an_older_attempt_makes_no_room_in_this_one() -> None:
    """Fault: a late word about a void item lets an item of the same number leave the window before it was taken."""
    given = speaking()
    given.emit(0, -1, 0, ref(1, nbytes=90))
    given.down("p0")
    given.tick(1.0)
    given.up("p0", epoch=2)
    assert replied(given.emit(0, -1, 0, ref(2, nbytes=90), attempt=2, epoch=2)) == [0]
    assert given.take(0, 0, attempt=1) == []
    assert replied(given.emit(0, -1, 1, ref(3, nbytes=90), attempt=2, epoch=2)) == []
    assert replied(given.take(0, 0, attempt=2)) == [1]


def test_a_source_that_has_ended_gets_no_more_credit() -> None:
    """Fault: messages about credit follow a stream that is over."""
    given = speaking()
    given.emit(0, -1, 0, ref(1), last=True)
    assert of(Grant, given.take(0, 0)) == []


def test_a_request_ends_when_the_last_held_item_was_sent() -> None:
    """Fault: the tail of the answer is thrown away when its stage ends."""
    given = speaking()
    given.emit(0, -1, 0, ref(1, nbytes=90))
    given.emit(0, -1, 1, ref(2, nbytes=90), last=True)
    assert of(Close, given.done(0)) == []
    assert kinds(given.take(0, 0)) == ["Reply", "Close", "Release"]
    expect_empty(given)


def test_a_caller_that_takes_nothing_while_bytes_wait_is_too_slow() -> None:
    """Fault: a caller that has stopped reading holds its stages until the request's deadline."""
    given = speaking()
    given.emit(0, -1, 0, ref(1, nbytes=60))
    assert of(WakeAt, given.emit(0, -1, 1, ref(2, nbytes=60))) == [WakeAt(time=5.0)]
    told = given.tick(5.0)
    (close,) = of(Close, told)
    assert (close.outcome, close.error.code) == ("failed", "client_too_slow")
    assert len(of(Cancel, told)) == 1
    assert [release.ref.key for release in of(Release, told)] == [2]


def test_a_caller_that_leaves_the_source_without_credit_is_too_slow() -> None:
    """Fault: small items never fill the window of bytes, and the stall goes unseen."""
    given = speaking()
    for seq in range(3):
        given.emit(0, -1, seq, ref(seq, nbytes=1))
    assert [close.error.code for close in of(Close, given.tick(5.0))] == ["client_too_slow"]


def test_whoever_takes_something_in_time_is_not_too_slow() -> None:
    """Fault: a slow but steady listener is cut off."""
    given = speaking()
    for seq in range(3):
        given.emit(0, -1, seq, ref(seq, nbytes=90))
    assert replied(given.at(4.0).take(0, 0)) == [1]  # and another one still waits
    assert of(Close, given.tick(5.0)) == []
    assert replied(given.at(8.0).take(0, 1)) == [2]
    assert of(Close, given.tick(12.0)) == []


def test_a_caller_is_not_blamed_while_nothing_waits_for_it() -> None:
    """Fault: a stage that thinks for long makes its caller look slow."""
    given = speaking()
    given.emit(0, -1, 0, ref(1, nbytes=1))
    assert of(Close, given.tick(50.0)) == []
