"""What the machine is to hear, in lanes that take turns.

Faults pinned: one replica or the callers are heard to the end first; a lane that never moves; a lane whose order changes; a death
that overtakes last words.
"""

from omnistage.runtime.agenda import CALLERS, AgendaState
from omnistage.wire.messages import (
    AbortRequested,
    ClientTook,
    Event,
    ReplicaDown,
    Reported,
    Tick,
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


def test_a_round_takes_one_event_of_every_replica_and_a_few_of_the_callers() -> None:
    """Fault: what one stage says for another waits until everything else was heard."""
    much = [report("tape", number) for number in range(3)]
    asked = [took(seq) for seq in range(CALLERS + 1)]
    agenda = agenda_of(*asked, *much, Tick(now=0.0), report("sender", 0))
    assert list(agenda.round()) == [much[0], report("sender", 0), Tick(now=0.0), *asked[:CALLERS]]
    assert len(agenda) == 3
    assert list(agenda.round()) == [much[1], asked[CALLERS]]
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
