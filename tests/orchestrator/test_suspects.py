"""Requests that were present when a replica died: run again one by one, so that the one which kills dies alone."""

from omnistage.orchestrator.ending import UNHEARD_ITEMS
from omnistage.wire.messages import Close, Command, Submit
from tests.orchestrator.traces import Trace, edge, expect_empty, of, ref, stage


def submitted(told: list[Command]) -> list[str]:
    return [submit.request.request_id for submit in of(Submit, told)]


def came_back(given: Trace, process: str, epoch: int) -> list[Command]:
    """The replica that died in the epoch before is up again."""
    given.tick(given.now + 30.0)
    return given.up(process, epoch=epoch)


def finish(given: Trace, name: str, attempt: int, epoch: int) -> list[Command]:
    """The only stage ends, after its last word to the caller."""
    told = given.emit(0, -1, 0, None, last=True, request_id=name, attempt=attempt, epoch=epoch)
    return told + given.done(0, request_id=name, attempt=attempt, epoch=epoch)


def test_a_request_that_kills_its_worker_dies_alone() -> None:
    """Fault: whoever is run again beside it is present at its second death too, and fails with it."""
    given = Trace(stage(0, "text"))
    for name in ("first", "poison", "third"):
        given.arrive(name, stream=False)
    given.down("p0")
    assert submitted(came_back(given, "p0", 2)) == ["first"]
    assert submitted(finish(given, "first", 2, 2)) == ["poison"]
    (close,) = of(Close, given.down("p0", epoch=2))
    assert (close.request_id, close.outcome) == ("poison", "failed")
    assert submitted(came_back(given, "p0", 3)) == ["third"]
    assert of(Close, finish(given, "third", 2, 3))[0].outcome == "finished"
    expect_empty(given)


def test_a_new_request_waits_for_the_suspects_before_it_and_an_old_one_is_waited_for() -> None:
    """Fault: a request that was never near a death dies of one that was."""
    given = Trace(stage(0), stage(1, "text"), edge(0, 1))
    given.arrive("old", stream=False)
    given.arrive("suspect", stream=False)
    given.emit(0, 1, 0, ref(1), request_id="suspect")
    given.down("p1")
    given.emit(0, 1, 0, ref(2), request_id="old")
    given.emit(0, 1, 0, ref(3), request_id="suspect", attempt=2)
    given.arrive("new", stream=False)
    given.emit(0, 1, 0, ref(4), request_id="new")
    assert submitted(came_back(given, "p1", 2)) == ["old"]
    given.emit(0, 1, 1, None, last=True, request_id="old")
    given.done(0, request_id="old")
    given.emit(1, -1, 0, None, last=True, request_id="old", epoch=2)
    assert submitted(given.done(1, request_id="old", epoch=2)) == ["suspect"]
    assert submitted(given.abort("suspect")) == ["new"]


def test_a_request_that_got_further_than_its_death_is_suspected_no_more() -> None:
    """Fault: after a death a long answer, or a slow caller, keeps everybody out to its end."""
    given = Trace(stage(0, "text"))
    given.arrive("long", stream=False)
    given.emit(0, -1, 0, ref(1), request_id="long")
    given.down("p0")
    came_back(given, "p0", 2)
    assert submitted(given.arrive("new")) == []
    for seq in range(UNHEARD_ITEMS + 1):
        assert submitted(given.emit(0, -1, seq, ref(10 + seq), request_id="long", attempt=2, epoch=2)) == []
    seq = UNHEARD_ITEMS + 1
    assert submitted(given.emit(0, -1, seq, ref(10 + seq), request_id="long", attempt=2, epoch=2)) == ["new"]


def test_a_death_elsewhere_makes_nobody_wait_here() -> None:
    """Fault: one stage's deaths stop the stages before it."""
    given = Trace(stage(0), stage(1, "text"), edge(0, 1))
    given.arrive("first", stream=False)
    given.emit(0, 1, 0, ref(1), request_id="first")
    assert submitted(given.down("p1")) == ["first"]
    assert submitted(given.arrive("second", stream=False)) == ["second"]
