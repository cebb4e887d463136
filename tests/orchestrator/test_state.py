"""Commands of one event: their order, and the alarm."""

from omnistage.wire.messages import WakeAt
from tests.orchestrator.traces import Trace, edge, kinds, of, ref, stage


def alarms(commands: list) -> list[float]:
    return [alarm.time for alarm in of(WakeAt, commands)]


def test_the_alarm_is_set_to_the_earliest_deadline_and_only_when_it_changes() -> None:
    """Fault: a deadline passes unseen because the alarm stands at a later one."""
    given = Trace(stage(0, "text"))
    assert alarms(given.arrive("a", timeout_s=10.0)) == [10.0]
    assert alarms(given.arrive("b", timeout_s=20.0)) == []
    assert alarms(given.arrive("c", timeout_s=5.0)) == [5.0]


def test_the_alarm_is_set_again_after_it_has_gone_off() -> None:
    """Fault: after the first deadline no other is ever kept."""
    given = Trace(stage(0, "text", cancel_timeout_s=100.0))
    given.arrive("a", timeout_s=10.0)
    given.arrive("b", timeout_s=20.0)
    assert alarms(given.tick(10.0)) == [20.0]


def test_an_alarm_that_goes_off_early_is_set_again() -> None:
    """Fault: a timer that fires a moment too soon loses the deadline."""
    given = Trace(stage(0, "text"))
    given.arrive(timeout_s=10.0)
    assert given.tick(9.999) == [WakeAt(time=10.0)]


def test_the_alarm_moves_when_the_earliest_deadline_is_gone() -> None:
    """Fault: the shell is woken for nothing, or not for the next."""
    given = Trace(stage(0, "text"), up=False)
    given.arrive("a", timeout_s=10.0)
    given.arrive("b", timeout_s=20.0)
    assert alarms(given.abort("a")) == [20.0]


def test_releases_follow_what_reads_the_payload_and_the_alarm_comes_last() -> None:
    """Fault: a payload is freed before the command that hands it out."""
    given = Trace(stage(0, "text"), stage(1, "audio"), edge(0, 1))
    given.arrive(timeout_s=10.0)
    assert kinds(given.emit(0, -1, 0, ref(1), last=True)) == ["Reply", "Release"]
    assert kinds(given.done(0)) == ["Close"]
    told = given.arrive("b", timeout_s=5.0)
    assert [type(command).__name__ for command in told] == ["Submit", "WakeAt"]
