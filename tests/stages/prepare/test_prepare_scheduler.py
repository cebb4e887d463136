"""Who is prepared next, and what a helper's death means for whom.

Faults pinned: arrival in the queue decides in place of the one total order; a request that kills its helpers is prepared for ever,
or takes its neighbours along; what was cancelled is prepared or told.
"""

from typing import Any

from omnistage.stages.prepare.scheduler import JobState, PrepareScheduler
from omnistage.wire.messages import CLIENT, Submit
from tests.fakes import request_of

WHERE: dict[str, Any] = {"process": "main", "replica": 0, "epoch": 1}


def job(name: str, order: tuple[int, int] = (0, 0), attempt: int = 1) -> JobState:
    request = request_of("words", name)
    submit = Submit(**WHERE, stage_id=0, request=request, attempt=attempt, order=order, active_targets=(CLIENT,))
    return JobState(submit, name.encode(), since_s=0.0)


def begun(scheduler: PrepareScheduler, helper: int) -> str:
    taken = scheduler.take_first()
    scheduler.begin(helper, taken, 1.0)
    return taken.request_id


def test_the_oldest_goes_first_whoever_came_first() -> None:
    """Fault: a request of low priority that came early is prepared before an urgent one."""
    scheduler = PrepareScheduler()
    for name, order in (("late", (5, 1)), ("urgent", (-1, 9)), ("early", (0, 2)), ("earlier", (0, 1))):
        scheduler.add(job(name, order))
    assert [begun(scheduler, helper) for helper in range(4)] == ["urgent", "earlier", "early", "late"]


def test_a_request_is_prepared_again_once_and_fails_alone() -> None:
    """Fault: a poison is prepared for ever; a request that was in a helper at one death fails."""
    scheduler = PrepareScheduler()
    scheduler.add(job("poison", (0, 1)))
    scheduler.add(job("neighbour", (0, 2)))
    assert begun(scheduler, 0) == "poison"
    assert scheduler.died(0) is None
    assert begun(scheduler, 0) == "poison"
    failed = scheduler.died(0)
    assert failed is not None
    assert failed.request_id == "poison"
    assert begun(scheduler, 0) == "neighbour"
    done = scheduler.done(0)
    assert done is not None
    assert (done.request_id, done.deaths, scheduler.waiting) == ("neighbour", 0, 0)


def test_a_cancelled_request_is_neither_prepared_nor_told() -> None:
    """Fault: the result of a cancelled request reaches the stage; its death fails it or prepares it again."""
    scheduler = PrepareScheduler()
    for name in ("inside", "dying", "waiting"):
        scheduler.add(job(name))
    begun(scheduler, 0)
    begun(scheduler, 1)
    for name in ("inside", "dying", "waiting", "unknown"):
        scheduler.drop(name, 1)
    assert (scheduler.waiting, scheduler.inside) == (0, 0)
    assert scheduler.done(0) is None
    assert scheduler.died(1) is None
    assert scheduler.first() is None


def test_a_cancel_of_an_older_attempt_leaves_the_later_one() -> None:
    """Fault: the answer to an old cancel takes the request that was begun again."""
    scheduler = PrepareScheduler()
    scheduler.add(job("again", attempt=1))
    begun(scheduler, 0)
    scheduler.add(job("again", attempt=2))
    scheduler.drop("again", 1)
    assert scheduler.done(0) is None
    first = scheduler.first()
    assert first is not None
    assert first.submit.attempt == 2
