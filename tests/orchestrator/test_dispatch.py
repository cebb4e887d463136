"""When and where a stage gets a request."""

import msgspec

from omnistage.core.request import Media, OmniRequest, Prompt
from omnistage.orchestrator.plan import Limits
from omnistage.wire.messages import Arrived, Cancel, Feed, Submit
from tests.orchestrator.traces import Trace, edge, kinds, of, ref, request, stage


def submitted(commands: list) -> list[tuple[str, int]]:
    return [(submit.request.request_id, submit.replica) for submit in of(Submit, commands)]


def test_a_downstream_stage_is_submitted_with_its_first_item() -> None:
    """Fault: a request takes a place in stages that have nothing to do for it yet."""
    given = Trace(stage(0), stage(1, "audio"), edge(0, 1, window=2))
    given.arrive(wants=("audio",))
    told = given.emit(0, 1, 0, ref(1))
    assert kinds(told) == ["Submit", "Feed"]
    (submit,) = of(Submit, told)
    assert (submit.stage_id, submit.active_targets, submit.windows) == (1, (-1,), {-1: 8})
    assert kinds(given.emit(0, 1, 1, ref(2))) == ["Feed"]


def test_media_go_to_the_stages_that_prepare_them() -> None:
    """Fault: every stage of a pipeline gets a copy of every video."""
    given = Trace(stage(0), stage(1, "audio"), edge(0, 1))
    seen = request("r", ("audio",))
    prompt = Prompt(text="a", media=(Media(kind="video", data=b"x" * 100),), mm_processor_kwargs={"a": True})
    seen = msgspec.structs.replace(seen, prompt=prompt)
    (first,) = of(Submit, given.handle(Arrived(now=0.0, request=seen)))
    assert first.request == seen
    (second,) = of(Submit, given.emit(0, 1, 0, ref(1)))
    assert second.request == msgspec.structs.replace(seen, prompt=msgspec.structs.replace(prompt, media=()))


def test_a_request_that_begins_again_has_its_media() -> None:
    """Fault: what one stage had no use for is gone when another begins anew."""
    given = Trace(stage(0, "text"))
    seen = request()
    prompt = Prompt(text="a", media=(Media(kind="video", data=b"x" * 100),))
    seen = msgspec.structs.replace(seen, prompt=prompt)
    given.handle(Arrived(now=0.0, request=seen))
    given.down("p0")
    given.tick(1.0)
    (again,) = of(Submit, given.up("p0", epoch=2))
    assert (again.request, again.attempt) == (seen, 2)


def test_an_edge_that_does_not_stream_has_no_window_and_feeds_its_one_payload() -> None:
    """Fault: a gathering sender waits for credit that nobody gives."""
    given = Trace(stage(0), stage(1, "audio"), edge(0, 1, streaming=False))
    (submit,) = of(Submit, given.arrive(wants=("audio",)))
    assert submit.windows == {}
    assert kinds(given.emit(0, 1, 0, ref(1), last=True)) == ["Submit", "Feed"]
    assert kinds(given.consume(0, 1, 0)) == ["Release"]


def test_what_finds_no_place_waits_in_the_machine_in_the_total_order() -> None:
    """Fault: arrival order is lost, or priorities have no effect."""
    given = Trace(stage(0, "text", max_num_seqs=1, lookahead=1))
    assert [len(submitted(given.arrive(name))) for name in ("a", "b", "c", "d")] == [1, 1, 0, 0]
    assert submitted(given.arrive("urgent", priority=-1)) == [("urgent", 0)]  # none that precedes it is there
    given.emit(0, -1, 0, None, last=True, request_id="a")
    assert submitted(given.done(0, "a")) == []  # urgent and b precede c
    given.emit(0, -1, 0, None, last=True, request_id="urgent")
    assert submitted(given.done(0, "urgent")) == [("c", 0)]


def test_an_older_request_goes_in_past_a_replica_full_of_younger_ones() -> None:
    """Fault: the oldest waits for a place that only its own progress could free."""
    given = Trace(stage(0), stage(1, "text", max_num_seqs=1, lookahead=0), edge(0, 1))
    given.arrive("old")
    given.arrive("young")
    assert len(of(Submit, given.emit(0, 1, 0, ref(1), request_id="young"))) == 1
    assert submitted(given.emit(0, 1, 0, ref(2), request_id="old")) == [("old", 0)]


def test_items_that_came_while_the_target_waited_are_fed_in_order() -> None:
    """Fault: the beginning of a stream is lost when its target is busy."""
    given = Trace(stage(0), stage(1, "text", max_num_seqs=1, lookahead=0), edge(0, 1))
    for name in ("first", "second"):
        given.arrive(name)
        given.emit(0, 1, 0, ref(1, owner=name), request_id=name)
    assert kinds(given.emit(0, 1, 1, ref(2), last=True, request_id="second")) == []
    given.emit(0, 1, 1, None, last=True, request_id="first")
    given.emit(1, -1, 0, None, last=True, request_id="first")
    told = given.done(1, "first")
    assert kinds(told) == ["Submit", "Feed", "Feed", "Release"]
    assert [(feed.request_id, feed.seq) for feed in of(Feed, told)] == [("second", 0), ("second", 1)]


def test_a_cancelled_slot_counts_until_the_stage_has_let_go() -> None:
    """Fault: a stage gets more than it has places for while cancels are under way."""
    given = Trace(stage(0, "text", max_num_seqs=1, lookahead=0))
    given.arrive("first")
    given.arrive("second")
    told = given.abort("first")
    assert (len(of(Cancel, told)), submitted(told)) == (1, [])
    assert submitted(given.cancelled(0, "first")) == [("second", 0)]


def test_requests_spread_over_replicas_and_later_stages_of_a_process_stay_with_the_first() -> None:
    """Fault: a payload that could go over by reference goes to another worker."""
    given = Trace(
        stage(0, process="p"), stage(1), stage(2, "text", process="p"), edge(0, 1), edge(1, 2), replicas={"p": 2}
    )
    assert submitted(given.arrive("a")) == [("a", 0)]
    assert submitted(given.arrive("b")) == [("b", 1)]
    given.emit(0, 1, 0, ref(1), request_id="b", replica=1)
    given.abort("a")
    given.cancelled(0, "a", replica=0)  # the first replica is empty now
    assert submitted(given.emit(1, 2, 0, ref(2), request_id="b")) == [("b", 1)]


def test_one_that_is_bound_to_a_full_replica_keeps_no_other_from_a_free_one() -> None:
    """Fault: one request that must wait for its own replica stops the queue of all."""
    given = Trace(
        stage(0, process="p", max_num_seqs=9),
        stage(1, "text", process="p", max_num_seqs=1, lookahead=0),
        edge(0, 1),
        replicas={"p": 2},
    )
    for name in ("a", "b", "c", "d"):  # on replicas 0, 1, 0, 1
        given.arrive(name)
    given.emit(0, 1, 0, ref(1), request_id="a", replica=0)
    assert submitted(given.emit(0, 1, 0, ref(2), request_id="c", replica=0)) == []
    assert submitted(given.emit(0, 1, 0, ref(3), request_id="d", replica=1)) == [("d", 1)]


def test_a_request_is_served_as_soon_as_the_stages_it_needs_are_up() -> None:
    """Fault: text waits for the speech stage to load."""
    given = Trace(stage(0, "text"), stage(1, "audio"), edge(0, 1), up=False)
    given.arrive("text", wants=("text",))
    given.arrive("speech", wants=("audio",))
    assert submitted(given.up("p0")) == [("text", 0), ("speech", 0)]
    given.emit(0, 1, 0, ref(1), request_id="speech")
    assert given.tables["queues"] == {"s0": 0, "s1": 1}
    assert submitted(given.up("p1")) == [("speech", 0)]


def test_the_request_is_handed_on_as_it_was_admitted() -> None:
    """Fault: something below the engine changes a request."""
    given = Trace(stage(0, "text"))
    (submit,) = of(Submit, given.arrive("r", priority=3))
    assert isinstance(submit.request, OmniRequest)
    assert (submit.request, submit.order) == (given.events[-1].request, (3, 1))  # type: ignore[union-attr]


def test_those_that_wait_for_their_callers_take_no_place_up_to_a_bound() -> None:
    """Fault: as many callers as a stage has places, which read slowly, keep everybody else out; or it collects them for ever."""
    limits = Limits(client_window_nbytes=100)
    given = Trace(stage(0, "audio", max_num_seqs=1, lookahead=0, paused_per_place=2), limits=limits)
    for name in ("a", "b", "c"):
        assert submitted(given.arrive(name, wants=("audio",))) == [(name, 0)]
        given.emit(0, -1, 0, ref(1), request_id=name)
        given.emit(0, -1, 1, ref(2), request_id=name)
    assert submitted(given.arrive("d", wants=("audio",))) == []
    given.abort("b")
    assert submitted(given.cancelled(0, "b")) == [("d", 0)]


def test_media_have_no_more_credit_than_their_window_has_room_for() -> None:
    """Fault: what a caller has no window for is made all the same, and waits in the arena that others need."""
    limits = Limits(client_window_nbytes=100, client_window_items=8)
    for item_nbytes, window in ((0, 8), (30, 3), (1000, 1)):
        given = Trace(stage(0, "audio", item_nbytes=item_nbytes), limits=limits)
        (submit,) = of(Submit, given.arrive(wants=("audio",)))
        assert submit.windows == {-1: window}
