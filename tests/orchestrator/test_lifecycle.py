"""Replicas: started, up, dead, restarted, given up, stopped."""

from omnistage.orchestrator.plan import Limits
from omnistage.wire.messages import Close, Feed, Release, StartReplica, StopReplica, Submit, WakeAt
from tests.orchestrator.traces import Trace, edge, expect_empty, kinds, of, ref, stage

LIMITS = Limits(restart_first_s=1.0, restart_most_s=3.0, strikes=3, strike_window_s=60.0)


def state_of(given: Trace, name: str = "p0/0") -> str:
    return str(given.tables["replicas"][name]["state"])


def test_every_replica_is_started_once_in_its_first_epoch() -> None:
    """Fault: a replica is forgotten at the start."""
    given = Trace(stage(0, "text"), stage(1), replicas={"p0": 2}, up=False)
    assert given.told[0] == [
        StartReplica(process="p0", replica=0, epoch=1),
        StartReplica(process="p0", replica=1, epoch=1),
        StartReplica(process="p1", replica=0, epoch=1),
    ]


def test_a_dead_replica_is_started_again_after_its_pause_in_the_next_epoch() -> None:
    """Fault: a dead replica stays dead, or is started again without a pause."""
    given = Trace(stage(0, "text"), limits=LIMITS)
    told = given.at(10.0).down("p0")
    assert (kinds(told), of(WakeAt, told)) == ([], [WakeAt(time=11.0)])
    assert of(StartReplica, given.tick(11.0)) == [StartReplica(process="p0", replica=0, epoch=2)]
    assert state_of(given) == "starting"


def test_the_pause_doubles_with_every_death_up_to_its_bound() -> None:
    """Fault: a replica that dies at once is started again as fast as it dies."""
    given = Trace(stage(0, "text"), limits=Limits(restart_first_s=1.0, restart_most_s=3.0, strikes=9))
    pauses = []
    for epoch in (1, 2, 3):
        (alarm,) = of(WakeAt, given.down("p0", epoch=epoch))
        pauses.append(alarm.time - given.now)
        given.tick(alarm.time)
    assert pauses == [1.0, 2.0, 3.0]


def test_three_deaths_in_a_minute_and_the_stage_stays_down_with_the_reason() -> None:
    """Fault: a stage that cannot live is started for ever and its requests wait for it."""
    given = Trace(stage(0, "text"), limits=LIMITS)
    given.down("p0", epoch=1)
    given.tick(1.0)
    given.down("p0", epoch=2)
    given.tick(4.0)
    given.arrive("waiting")
    told = given.down("p0", epoch=3, reason="no memory")
    (close,) = of(Close, told)
    assert (close.request_id, close.error.code, close.error.stage) == ("waiting", "stage_unavailable", "s0")
    assert close.error.message == "s0 is down: no memory"
    assert state_of(given) == "down"
    assert kinds(given.tick(500.0)) == []
    (close,) = of(Close, given.arrive("late"))
    assert close.error.code == "stage_unavailable"
    expect_empty(given)


def test_deaths_that_lie_far_apart_are_forgiven() -> None:
    """Fault: a stage that dies once an hour is given up after three hours."""
    given = Trace(stage(0, "text"), limits=LIMITS)
    for epoch in range(1, 6):
        given.down("p0", epoch=epoch)
        given.tick(given.now + 61.0)
    assert state_of(given) == "starting"


def test_one_replica_that_is_given_up_leaves_the_others_to_serve() -> None:
    """Fault: one bad replica makes its stage unavailable."""
    given = Trace(stage(0, "text"), replicas={"p0": 2}, limits=Limits(strikes=1))
    given.down("p0")
    (submit,) = of(Submit, given.arrive())
    assert submit.replica == 1


def test_requests_that_do_not_need_a_lost_stage_are_served() -> None:
    """Fault: text is refused because the speech stage is down."""
    given = Trace(stage(0, "text"), stage(1, "audio"), edge(0, 1), limits=Limits(strikes=1))
    given.arrive("text", wants=("text",))
    given.arrive("speech", wants=("audio",), group_id="g")
    given.arrive("speech too", wants=("audio",), group_id="g")
    told = given.down("p1")
    assert [close.request_id for close in of(Close, told)] == ["speech", "speech too"]
    assert of(Close, given.arrive("more text", wants=("text",))) == []


def test_words_about_another_epoch_are_not_about_this_one() -> None:
    """Fault: the late death notice of an old incarnation kills the new one's requests."""
    given = Trace(stage(0, "text"), limits=LIMITS)
    given.down("p0", epoch=1)
    given.tick(1.0)
    given.up("p0", epoch=1)
    assert state_of(given) == "starting"
    given.up("p0", epoch=2)
    given.arrive()
    assert given.down("p0", epoch=1) == []
    given.becomes("sleeping", "p0", epoch=1)
    assert state_of(given) == "ready"


def test_a_death_is_counted_once() -> None:
    """Fault: a death that is seen twice counts as two strikes."""
    given = Trace(stage(0, "text"), limits=LIMITS)
    given.down("p0")
    given.down("p0")
    assert given.tables["replicas"]["p0/0"]["deaths"] == 1


def test_words_about_a_replica_that_does_not_exist_change_nothing() -> None:
    """Fault: a wrong name brings the machine down."""
    given = Trace(stage(0, "text"))
    told = [*given.up("p0", 7), *given.down("nowhere"), *given.becomes("active", "p0", -1)]
    assert told == []


def test_a_draining_replica_gets_nothing_new_until_it_is_active_again() -> None:
    """Fault: a replica that is to be emptied is filled."""
    given = Trace(stage(0, "text"))
    for state in ("draining", "sleeping"):
        given.becomes(state, "p0")
        assert of(Submit, given.arrive(state)) == []
        assert [submit.request.request_id for submit in of(Submit, given.becomes("active", "p0"))] == [state]


def test_what_a_draining_replica_has_begun_it_ends() -> None:
    """Fault: an item for a request on a draining replica is held back."""
    given = Trace(stage(0, process="p"), stage(1, "text", process="p"), edge(0, 1))
    given.arrive()
    given.becomes("draining", "p")
    told = given.emit(0, 1, 0, ref(1))
    assert (len(of(Submit, told)), len(of(Feed, told))) == (1, 1)


def test_a_replica_that_does_not_answer_a_cancel_is_killed_once_and_its_death_returns_everything() -> None:
    """Fault: a stage that is stuck keeps its slots and payloads for ever."""
    given = Trace(stage(0), stage(1, "text", cancel_timeout_s=7.0), edge(0, 1), limits=LIMITS)
    for name in ("a", "b"):
        given.arrive(name)
        given.emit(0, 1, 0, ref(1, owner=name), last=True, request_id=name)
        given.done(0, name)
        given.abort(name)
    told = given.tick(7.0)
    assert of(StopReplica, told) == [StopReplica(process="p1", replica=0, epoch=1, kill=True)]
    assert of(Submit, given.arrive("c")) != []
    assert of(Submit, given.emit(0, 1, 0, ref(9), request_id="c")) == []  # nothing new goes to the condemned
    assert len(of(Release, given.down("p1"))) == 2
    assert given.tables["replicas"]["p1/0"]["slots"] == 0


def test_a_cancel_that_is_answered_in_time_kills_nobody() -> None:
    """Fault: the deadline of an answered cancel still stands."""
    given = Trace(stage(0, "text", cancel_timeout_s=7.0))
    given.arrive()
    given.abort()
    given.cancelled(0)
    assert given.tick(7.0) == []
    expect_empty(given)


def test_a_stop_reaches_replicas_in_every_state_and_none_is_started_again() -> None:
    """Fault: a replica that is starting, or waiting to be, comes up after the shutdown."""
    given = Trace(stage(0, "text"), stage(1), stage(2), stage(3), limits=Limits(strikes=2), up=False)
    given.up("p0")
    given.down("p1")
    given.down("p2")
    given.tick(1.0)
    given.down("p2", epoch=2)  # given up
    given.tick(2.0)
    given.down("p1", epoch=2)
    assert state_of(given, "p1/0") == "down"
    told = given.shut_down(5.0)
    assert [stop.process for stop in of(StopReplica, told)] == ["p0", "p3"]
    given.up("p3")
    assert state_of(given, "p3/0") == "stopping"
    given.becomes("active", "p0")
    given.down("p0")
    given.down("p3")
    assert {replica["state"] for replica in given.tables["replicas"].values()} == {"stopped"}
    assert given.tick(1000.0) == []
    expect_empty(given)


def test_a_restart_that_waits_is_called_off_by_a_stop() -> None:
    """Fault: the machine starts a worker after everything was stopped."""
    given = Trace(stage(0, "text"))
    given.down("p0")
    given.shut_down(5.0)
    assert given.tick(100.0) == []
    assert state_of(given) == "stopped"


def test_a_condemned_replica_is_not_told_to_stop_again() -> None:
    """Fault: a graceful stop follows a kill."""
    given = Trace(stage(0, "text", cancel_timeout_s=1.0))
    given.arrive()
    given.abort()
    given.tick(1.0)
    assert of(StopReplica, given.shut_down(5.0)) == []


def test_cancels_that_are_due_while_a_replica_stops_kill_nobody() -> None:
    """Fault: the machine kills what the supervisor is stopping."""
    given = Trace(stage(0, "text", cancel_timeout_s=1.0))
    given.arrive()
    given.abort()
    given.shut_down(5.0)
    assert given.tick(2.0) == []
