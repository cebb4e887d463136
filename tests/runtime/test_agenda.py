"""What the machine is to hear, in lanes that take turns.

Faults pinned: one replica or the callers are heard to the end first; a lane that never moves; a lane whose order changes; a death
that overtakes last words; one request's payload released between two halves of a report.
"""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from omnistage.core.payload import PayloadRef
from omnistage.runtime.agenda import SLICE, AgendaState, slices
from omnistage.wire.messages import (
    AbortRequested,
    ClientTook,
    Consumed,
    ControlDone,
    Emitted,
    Event,
    ReplicaDown,
    Reported,
    Tick,
    WorkerEvent,
)


def report(process: str, number: int) -> Reported:
    return Reported(now=0.0, process=process, replica=0, epoch=1, items=(), at_s=float(number))


def took(seq: int) -> ClientTook:
    return ClientTook(now=0.0, request_id="r", attempt=1, source=0, seq=seq)


def agenda_of(*events: Event) -> AgendaState:
    agenda = AgendaState()
    for event in events:
        agenda.put(event)
    return agenda


def emitted(request_id: str, target: int = 1) -> Emitted:
    return Emitted(
        request_id=request_id,
        attempt=1,
        source=0,
        target=target,
        seq=0,
        ref=PayloadRef("shm", "main/0", 1, 0),
        last=False,
    )


def test_a_round_takes_one_event_of_every_replica_and_a_few_of_the_callers() -> None:
    """Fault: what one stage says for another waits until everything else was heard."""
    much = [report("tape", number) for number in range(3)]
    asked = [took(seq) for seq in range(SLICE + 1)]
    agenda = agenda_of(*asked, *much, Tick(now=0.0), report("sender", 0))
    assert list(agenda.round()) == [much[0], report("sender", 0), Tick(now=0.0), *asked[:SLICE]]
    assert len(agenda) == 3
    assert list(agenda.round()) == [much[1], asked[SLICE]]
    assert list(agenda.round()) == [much[2]]
    assert not agenda and list(agenda.round()) == []


def test_what_is_put_during_a_round_waits_for_the_next() -> None:
    """Fault: a round that never ends, because each event brings another."""
    agenda = agenda_of(report("tape", 0), took(0))
    heard = []
    for event in agenda.round():
        heard.append(event)
        agenda.put(Tick(now=1.0) if isinstance(event, Reported) else report("tape", 1))
    assert heard == [report("tape", 0), took(0)]
    assert list(agenda.round()) == [report("tape", 1), Tick(now=1.0)]


def test_each_lane_keeps_its_order() -> None:
    """Fault: a death that is heard before the last words; an abort that overtakes the request it is for."""
    down = ReplicaDown(now=0.0, process="tape", replica=0, epoch=1, reason="was killed")
    abort = AbortRequested(now=0.0, request_id="r")
    agenda = agenda_of(report("tape", 0), took(0), abort, down)
    heard: list[Event] = []
    while agenda:
        heard += agenda.round()
    assert heard == [report("tape", 0), took(0), abort, down]


items = st.lists(
    st.one_of(
        st.builds(emitted, st.sampled_from("abc"), st.integers(1, 2)),
        st.builds(lambda name: Consumed(request_id=name, attempt=1, source=0, target=1, seq=0), st.sampled_from("abc")),
        st.builds(lambda name: ControlDone(call_id=name, stage_id=0), st.sampled_from("xy")),
    ),
    min_size=1,
    max_size=60,
)


@given(items)
def test_a_report_is_cut_between_requests_and_nothing_of_it_is_lost(report_items: list[WorkerEvent]) -> None:
    """Fault: an item that is lost, told twice or out of order; a payload that goes to two targets cut from itself."""
    pieces = list(slices(tuple(report_items)))
    assert [item for piece in pieces for item in piece] == report_items
    for before, after in pairwise(pieces):
        assert len(before) >= SLICE
        assert _name(before[-1]) != _name(after[0])


def test_a_long_report_is_cut_into_short_pieces() -> None:
    """Fault: 64 sounds of one step are heard in one go."""
    pieces = list(slices(tuple(emitted(str(number)) for number in range(3 * SLICE + 1))))
    assert [len(piece) for piece in pieces] == [SLICE, SLICE, SLICE, 1]
    assert list(slices((emitted("a"),))) == [(emitted("a"),)]


def _name(item: WorkerEvent) -> str:
    return item.call_id if isinstance(item, ControlDone) else item.request_id
