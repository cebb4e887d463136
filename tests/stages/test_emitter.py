"""The outputs of a stage on their way out: chunk policies, credit, room, the one order, and the end of every edge.

Faults pinned: a chunk border that moves with credit; more items in flight than a window; a younger request that takes the
room an older one waits for; a lost tail; a second end; memory that grows while an edge is blocked.
"""

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.config.stage import OutputEdge
from omnistage.core.errors import InvalidRequestError, PayloadTooLargeError, StageFailedError
from omnistage.core.payload import MultimodalPayload
from omnistage.stages.base import StageOutput, StageRequest
from omnistage.stages.emitter import REST_S, Emitter
from omnistage.wire.messages import CLIENT, Emitted, StageDone
from tests.fakes import request_of
from tests.stages.fakes import TightConnector, rows, text

DONE = StageOutput("r", finish_reason="stop")


class Clock:
    at_s = 100.0

    def __call__(self) -> float:
        return self.at_s


class Sender:
    """An emitter with one or more requests, and what has left it."""

    def __init__(self, *outputs: OutputEdge, room: int = 1000, **options: Any) -> None:
        self.connector = TightConnector(room)
        self.emitter = Emitter(outputs, {"shm": self.connector}, stage="thinker", **options)
        self.targets = frozenset(edge.target for edge in outputs)

    def open(self, request_id: str = "r", *, order: int = 0, windows: dict[int, int] | None = None) -> None:
        request = StageRequest(request_of(request_id=request_id), 1, 0, (0, order), self.targets)
        self.emitter.open(request, windows or {})

    def make(self, payload: MultimodalPayload, request_id: str = "r") -> list[Any]:
        self.emitter.gather(request_id, payload)
        return self.pump()

    def end(self, request_id: str = "r") -> list[Any]:
        self.emitter.end(request_id, DONE)
        return self.pump()

    def pump(self, *, is_idle: bool = False) -> list[Any]:
        """[values of the tensor, or the text, of each item; "last"; "done"] in order of leaving."""
        said: list[Any] = []
        for event in self.emitter.pump(is_idle=is_idle).events:
            match event:
                case StageDone():
                    said.append("done")
                case Emitted(ref=ref, last=last):
                    payload = self.connector.payloads[ref.key] if ref is not None else MultimodalPayload()
                    if "x" in payload.tensors:
                        said.append(payload.numpy("x").tolist())
                    elif payload.metadata:
                        said.append(payload.metadata["text"])
                    said.extend(["last"] if last else [])
        return said


def test_items_leave_one_by_one_and_the_last_capture_carries_the_end() -> None:
    """Fault: the end is lost, or told twice."""
    sender = Sender(OutputEdge(target=1))
    sender.open()
    assert sender.make(rows(1)) == [[1]]
    sender.emitter.gather("r", rows(2))
    assert sender.end() == [[2], "last", "done"]
    assert "r" not in sender.emitter
    assert sender.pump() == []


def test_an_item_says_whether_it_tells_only_how_far_the_stage_is() -> None:
    """Fault: the caller of a picture is taken for one who has had a piece of it, or one who has had a piece for one who has not."""
    sender = Sender(OutputEdge(target=CLIENT))
    sender.open()
    step = MultimodalPayload(metadata={"progress": {"step": 1, "steps": 2, "index": 0}})
    piece = MultimodalPayload(rows(1).tensors, step.metadata)
    for capture in (step, piece, MultimodalPayload(metadata={**step.metadata, "index": 0})):
        sender.emitter.gather("r", capture)
    sender.emitter.end("r", DONE)
    events = sender.emitter.pump().events
    assert [event.progress for event in events if isinstance(event, Emitted)] == [True, False, False]


def test_only_the_oldest_request_of_an_edge_has_room_of_its_own() -> None:
    """Fault: the oldest waits for younger ones that wait for it, or a younger one takes the room that is kept for it."""
    sender = Sender(OutputEdge(target=1), OutputEdge(target=2))
    sender.open("older", order=1)
    sender.open("younger", order=2)
    sender.make(rows(1), "younger")
    sender.make(rows(1), "older")
    assert sender.connector.asked == [None, None, (0, 1), (0, 2)]
    sender.end("older")
    sender.make(rows(2), "younger")
    assert sender.connector.asked[4:] == [(0, 1), (0, 2)]


def test_an_end_without_a_remainder_is_an_item_without_payload() -> None:
    """Fault: the target waits for an end that never comes."""
    sender = Sender(OutputEdge(target=1), OutputEdge(target=2))
    sender.open()
    sender.make(rows(1))
    assert sender.end() == ["last", "last", "done"]


def test_adaptive_rows_leave_early_when_nothing_is_in_flight() -> None:
    """Fault: the first sound waits for a whole later chunk, or a busy edge is flooded with tiny ones."""
    sender = Sender(OutputEdge(target=1, unit="rows", first=2, later=4))
    sender.open(windows={1: 8})
    assert sender.make(rows(1)) == []
    assert sender.make(rows(2)) == [[1, 2]]
    assert sender.make(rows(3, 4)) == []  # two rows would do, but an item is in flight
    sender.emitter.grant("r", 1, 1)
    assert sender.pump() == [[3, 4]]
    assert sender.make(rows(5, 6, 7)) == []
    assert sender.make(rows(8, 9)) == [[5, 6, 7, 8, 9]]


def test_a_pinned_schedule_ignores_what_is_in_flight() -> None:
    """Fault: borders that depend on how fast the target is."""
    sender = Sender(OutputEdge(target=1, unit="rows", first=1, later=3, adaptive=False))
    sender.open(windows={1: 8})
    assert sender.make(rows(1)) == [[1]]
    sender.emitter.grant("r", 1, 1)
    assert sender.make(rows(2, 3)) == []
    assert sender.make(rows(4)) == [[2, 3, 4]]


def test_a_pinned_remainder_is_cut_by_the_schedule_too() -> None:
    """Fault: a blocked edge that catches up sends one large chunk where the schedule has several."""
    sender = Sender(OutputEdge(target=1, unit="rows", first=1, later=2, adaptive=False))
    sender.open(windows={1: 1})
    for value in range(6):
        sender.make(rows(value))
    sent = sender.end()
    while "done" not in sent:
        sender.emitter.grant("r", 1, 1)
        sent += sender.pump()
    assert sent == [[1, 2], [3, 4], [5], "last", "done"]


def test_a_window_is_never_exceeded_and_blocks_the_request() -> None:
    """Fault: a slow target is flooded; a request is told to stop although it still gathers towards a chunk."""
    sender = Sender(OutputEdge(target=1, first=1, later=2))
    sender.open(windows={1: 1})
    assert sender.make(rows(1)) == [[1]]
    assert sender.make(rows(2)) == []
    assert sender.emitter.blocked() == set()
    assert sender.make(rows(3)) == []
    assert sender.emitter.blocked() == {"r"}
    sender.emitter.grant("r", 1, 1)
    assert sender.pump() == [[2]]  # nothing is in flight: one item is a chunk
    assert sender.emitter.blocked() == set()


def test_the_bare_end_needs_credit_as_well() -> None:
    """Fault: one item more than the window."""
    sender = Sender(OutputEdge(target=1))
    sender.open(windows={1: 1})
    sender.make(rows(1))
    assert sender.end() == []
    assert sender.emitter.blocked() == set()  # the engine has ended it: there is nobody to hold back
    sender.emitter.grant("r", 1, 1)
    assert sender.pump() == ["last", "done"]


def test_items_say_how_many_rows_they_have_where_the_edge_counts_them() -> None:
    """Fault: a schedule that nobody can look up; rows counted on an edge of items."""
    sender = Sender(OutputEdge(target=1, unit="frames", first=2, later=3, adaptive=False), OutputEdge(target=2))
    sender.open()
    for values in ((1,), (2,), (3, 4, 5, 6), (7,)):
        sender.emitter.gather("r", rows(*values))
    sender.emitter.end("r", DONE)
    items = [event for event in sender.emitter.pump().events if isinstance(event, Emitted)]
    assert [item.units for item in items if item.target == 1] == [2, 4, 1]
    assert {item.units for item in items if item.target == 2} == {None}


def test_a_whole_edge_sends_one_payload_at_the_end() -> None:
    """Fault: a target that wants everything at once gets pieces."""
    sender = Sender(OutputEdge(target=1, streaming=False))
    sender.open(windows={1: 1})
    assert sender.make(rows(1)) == []
    assert sender.make(rows(2)) == []
    assert sender.emitter.blocked() == set()
    assert sender.end() == [[1, 2], "last", "done"]


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("unit", ["frames", "rows"])
def test_a_whole_edge_of_frames_leaves_at_the_end_in_the_chunks_of_the_pinned_schedule(
    unit: str, adaptive: bool
) -> None:
    """Fault: a decoder that tiles by the chunks computes something else than when they are streamed."""
    sender = Sender(OutputEdge(target=1, unit=unit, first=2, later=3, adaptive=adaptive, streaming=False))
    sender.open()
    for value in range(9):
        assert sender.make(rows(value)) == []
    assert sender.end() == [[0, 1], [2, 3, 4], [5, 6, 7], [8], "last", "done"]


@given(
    first=st.integers(1, 5),
    later=st.integers(1, 5),
    sizes=st.lists(st.integers(0, 4), max_size=12),
    adaptive=st.booleans(),
)
def test_whole_and_pinned_edges_have_the_same_borders(first: int, later: int, sizes: list[int], adaptive: bool) -> None:
    """Fault: a border moves where captures hold several frames, or none."""
    said = []
    for streaming in (True, False):
        pinned = adaptive and not streaming
        sender = Sender(
            OutputEdge(target=1, unit="frames", first=first, later=later, adaptive=pinned, streaming=streaming)
        )
        sender.open()
        left = [item for size in sizes for item in sender.make(rows(*range(size)))] + sender.end()
        said.append([chunk for chunk in left if isinstance(chunk, list) and chunk])
    assert said[0] == said[1]


def test_a_whole_edge_of_frames_keeps_within_its_credit() -> None:
    """Fault: a window that is filled at once by everything that was gathered."""
    sender = Sender(OutputEdge(target=1, unit="frames", first=1, later=2, streaming=False))
    sender.open(windows={1: 2})
    for value in range(5):
        sender.make(rows(value))
    assert sender.end() == [[0], [1, 2]]
    sender.emitter.grant("r", 1, 2)
    assert sender.pump() == [[3, 4], "last", "done"]


def test_what_waits_for_its_end_is_bounded_and_the_edge_is_named() -> None:
    """Fault: a whole edge gathers until the process is killed."""
    sender = Sender(OutputEdge(target=1, streaming=False), max_gathered_nbytes=8)
    sender.open()
    sender.make(rows(1, 2))
    with pytest.raises(PayloadTooLargeError, match="edge thinker -> 1: 12 bytes"):
        sender.make(rows(3))


def test_text_for_the_caller_leaves_without_a_window() -> None:
    """Fault: a caller who reads slowly, or a chunk policy, holds back text."""
    now = Clock()
    sender = Sender(
        OutputEdge(target=CLIENT, first=5, later=9), OutputEdge(target=1), final_output_type="text", clock=now
    )
    sender.open(windows={CLIENT: 1, 1: 1})
    assert sender.make(text("a")) == ["a", "a"]
    now.at_s += REST_S
    sender.emitter.gather("r", text("b"))
    sender.emitter.gather("r", text("c"))
    assert sender.pump() == ["bc"]


def test_text_of_quick_steps_leaves_together() -> None:
    """Fault: every token of a quick model is told by itself, or the last of a pause waits for what never comes."""
    now = Clock()
    sender = Sender(OutputEdge(target=CLIENT), final_output_type="text", clock=now)
    sender.open()
    assert sender.make(text("a")) == ["a"]
    now.at_s += REST_S / 2
    assert sender.make(text("b")) == []
    assert sender.emitter.blocked() == set()
    now.at_s += REST_S / 2
    assert sender.make(text("c")) == ["bc"]
    sender.emitter.gather("r", text("d"))
    assert sender.pump(is_idle=True) == ["d"]
    sender.emitter.gather("r", text("e"))
    assert sender.end() == ["e", "last", "done"]


def test_frames_of_quick_steps_leave_together() -> None:
    """Fault: every frame of a quick talker is sent by itself and costs a call of its decoder; a request whose frames rest is told
    to make no more; a whole chunk rests too, or the first frame, or those of a slow talker."""
    now = Clock()
    sender = Sender(OutputEdge(target=1, unit="frames", first=1, later=4), clock=now)
    sender.open(windows={1: 9})
    assert sender.make(rows(1)) == [[1]]
    for frame in (2, 3, 4):
        sender.emitter.grant("r", 1, 1 if frame == 2 else 0)
        assert sender.make(rows(frame)) == []
        assert sender.emitter.blocked() == set()
    assert sender.make(rows(5)) == [[2, 3, 4, 5]]
    sender.emitter.grant("r", 1, 1)
    assert sender.make(rows(6)) == []
    now.at_s += REST_S
    assert sender.make(rows(7)) == [[6, 7]]
    now.at_s += REST_S
    sender.emitter.grant("r", 1, 1)
    assert sender.make(rows(8)) == [[8]]
    sender.emitter.grant("r", 1, 1)
    sender.emitter.gather("r", rows(9))
    assert sender.pump(is_idle=True) == [[9]]
    sender.emitter.gather("r", rows(10))
    assert sender.end() == [[10], "last", "done"]


def test_a_fan_out_goes_at_the_pace_of_the_slowest_target() -> None:
    """Fault: the fast target's items are counted against the slow one, or the slow edge grows without bound."""
    sender = Sender(OutputEdge(target=1), OutputEdge(target=2))
    sender.open(windows={1: 1, 2: 9})
    assert sender.make(rows(1)) == [[1], [1]]
    assert sender.make(rows(2)) == [[2]]
    assert sender.emitter.blocked() == {"r"}
    sender.emitter.grant("r", 1, 1)
    assert sender.pump() == [[2]]


def test_room_goes_to_the_oldest_and_text_passes_meanwhile() -> None:
    """Fault: younger requests keep an older one from ever sending; a full arena stops text that needs no room."""
    sender = Sender(OutputEdge(target=1), room=0)
    for name, order in (("young", 2), ("old", 1)):
        sender.open(name, order=order)
    big = rows(*np.zeros(20_000).tolist())
    sender.emitter.gather("young", big)
    sender.emitter.gather("old", big)
    assert sender.pump() == []
    assert sender.emitter.wants_room
    assert sender.emitter.blocked() == {"old", "young"}
    sender.open("chat", order=3)
    assert sender.make(text("hello"), "chat") == ["hello"]
    sender.connector.room = 1
    events = sender.emitter.pump().events
    assert [event.request_id for event in events] == ["old"]
    assert sender.emitter.wants_room


def test_a_younger_request_leaves_the_room_that_an_older_one_waits_for() -> None:
    """Fault: small payloads of younger requests take every bit of room that comes free, and an older large one starves."""
    sender = Sender(OutputEdge(target=1), room=1)
    sender.open("old", order=1)
    sender.open("young", order=2)
    many = np.zeros(20_000).tolist()
    sender.emitter.gather("old", rows(*many, occupies=2))
    sender.emitter.gather("young", rows(*many))
    assert sender.emitter.pump().events == []
    sender.connector.room = 2
    assert [event.request_id for event in sender.emitter.pump().events] == ["old"]


def test_a_payload_that_can_never_travel_fails_its_request_alone() -> None:
    """Fault: one request's oversized picture stops the stage, or is tried again for ever."""
    sender = Sender(OutputEdge(target=1))
    sender.open("bad", order=1)
    sender.open("good", order=2)
    sender.emitter.gather("bad", rows(1, too_large=True))
    sender.emitter.gather("good", rows(2))
    pumped = sender.emitter.pump()
    assert [event.request_id for event in pumped.events] == ["good"]
    [(request, error)] = pumped.failed
    assert request.request_id == "bad"
    assert error.code == PayloadTooLargeError.code
    assert "bad" not in sender.emitter


def test_what_cannot_travel_is_let_go_of_at_once() -> None:
    """Fault: a failed request keeps a dead neighbour's memory mapped until garbage happens to be collected."""
    sender = Sender(OutputEdge(target=1))
    sender.open("bad")
    gc.collect()
    gc.disable()
    try:
        before = payloads()
        sender.emitter.gather("bad", rows(1, too_large=True))
        assert payloads() == before + 1
        assert len(sender.emitter.pump().failed) == 1
        assert payloads() == before
    finally:
        gc.enable()


def payloads() -> int:
    """How many there are in this process, within reach or not."""
    return sum(isinstance(held, MultimodalPayload) for held in gc.get_objects())


def test_a_select_hook_picks_per_edge_and_none_sends_nothing() -> None:
    """Fault: a target gets what another one asked for, or empty items."""

    def second(capture: MultimodalPayload, request: object) -> MultimodalPayload | None:
        return None if capture.numpy("x")[0] == 1 else capture

    sender = Sender(OutputEdge(target=1, select="x:y"), OutputEdge(target=2), selects={1: second})
    sender.open()
    assert sender.make(rows(1)) == [[1]]
    assert sender.make(rows(2)) == [[2], [2]]


@pytest.mark.parametrize(
    ("fault", "says"),
    [(KeyError("hidden"), "what edge thinker -> 1 selects failed: KeyError"), (InvalidRequestError("no"), "no")],
)
def test_a_select_hook_that_raises_names_its_edge(fault: Exception, says: str) -> None:
    """Fault: a model's hook ends the stage without a name."""

    def broken(capture: MultimodalPayload, request: object) -> MultimodalPayload | None:
        raise fault

    sender = Sender(OutputEdge(target=1, select="x:y"), selects={1: broken})
    sender.open()
    with pytest.raises((StageFailedError, InvalidRequestError), match=says):
        sender.make(rows(1))


def test_an_active_target_without_an_edge_is_refused_and_a_strange_grant_ignored() -> None:
    """Fault: output for a target that does not exist disappears."""
    sender = Sender(OutputEdge(target=1))
    sender.open()
    sender.emitter.grant("r", 9, 1)
    assert sender.make(rows(1)) == [[1]]
    sender.targets = frozenset({1, 5})
    with pytest.raises(StageFailedError, match="no edge to stage 5"):
        sender.open("s")


def test_a_closed_request_leaves_nothing() -> None:
    """Fault: a cancelled request's gathered parts are sent later."""
    sender = Sender(OutputEdge(target=1))
    sender.open(windows={1: 0})
    sender.make(rows(1))
    sender.emitter.close("r")
    assert sender.pump() == []
    assert sender.emitter.blocked() == set()


EDGES = st.builds(
    OutputEdge,
    target=st.just(1),
    unit=st.sampled_from(["items", "rows", "frames"]),
    first=st.integers(1, 4),
    later=st.integers(1, 6),
    adaptive=st.booleans(),
    streaming=st.booleans(),
)


@given(edge=EDGES, sizes=st.lists(st.integers(0, 5), max_size=12), window=st.integers(1, 3), data=st.data())
@settings(max_examples=150, deadline=None)
def test_every_row_arrives_once_in_order_and_the_window_holds(
    edge: OutputEdge, sizes: list[int], window: int, data: st.DataObject
) -> None:
    """Fault: any policy, with any timing of credit, that loses, doubles or reorders rows or exceeds the window."""
    sender = Sender(edge, room=data.draw(st.integers(1, 2)))
    sender.open(windows={1: window})
    items: list[Emitted] = []
    granted = 0
    made = 0

    def pump() -> None:
        items.extend(event for event in sender.emitter.pump().events if isinstance(event, Emitted))
        assert len(items) - granted <= window

    for size in sizes:
        sender.emitter.gather("r", rows(*range(made, made + size)))
        made += size
        pump()
        if granted < len(items) and data.draw(st.booleans()):
            sender.emitter.grant("r", 1, 1)
            granted += 1
            sender.connector.room += 1
            pump()
    sender.emitter.end("r", DONE)
    pump()
    while "r" in sender.emitter:
        assert granted < len(items), "the request can never end"
        sender.emitter.grant("r", 1, 1)
        granted += 1
        sender.connector.room += 1
        pump()
    assert [item.seq for item in items] == list(range(len(items)))
    assert [item.last for item in items] == [False] * (len(items) - 1) + [True]
    payloads = [sender.connector.payloads[item.ref.key] for item in items if item.ref is not None]
    assert [value for payload in payloads for value in payload.numpy("x").tolist()] == list(range(made))
