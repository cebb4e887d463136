"""Deadlines by name."""

from omnistage.orchestrator.timers import CallDeadline, RequestDeadline, TimerState


def test_timers_are_popped_once_in_the_order_of_their_times() -> None:
    """Fault: a deadline fires twice, early, or after a later one."""
    timers = TimerState()
    timers.set(RequestDeadline("late"), 5.0)
    timers.set(RequestDeadline("early"), 1.0)
    timers.set(CallDeadline("never"), 9.0)
    assert timers.earliest() == 1.0
    assert [timers.pop_due(5.0) for _ in range(3)] == [RequestDeadline("early"), RequestDeadline("late"), None]
    assert len(timers) == 1


def test_a_moved_timer_fires_at_its_new_time_alone() -> None:
    """Fault: a deadline that was moved fires at the old time."""
    timers = TimerState()
    timers.set(RequestDeadline("r"), 1.0)
    timers.set(RequestDeadline("r"), 3.0)
    assert timers.pop_due(2.0) is None
    assert timers.pop_due(3.0) == RequestDeadline("r")
    assert timers.earliest() is None


def test_a_cleared_timer_never_fires() -> None:
    """Fault: an ended request times out."""
    timers = TimerState()
    timers.set(RequestDeadline("r"), 1.0)
    timers.clear(RequestDeadline("r"))
    timers.clear(RequestDeadline("r"))
    assert RequestDeadline("r") not in timers
    assert timers.pop_due(2.0) is None


def test_stale_entries_do_not_pile_up() -> None:
    """Fault: every request leaves an entry behind until its far deadline."""
    timers = TimerState()
    for count in range(10_000):
        timers.set(RequestDeadline(str(count)), 600.0)
        timers.clear(RequestDeadline(str(count)))
    assert len(timers._heap) < 200
