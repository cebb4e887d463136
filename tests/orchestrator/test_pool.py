"""The choice among the replicas of a process."""

from omnistage.orchestrator.pool import SlotState, StagePool, WorkerStatus
from tests.orchestrator.traces import stage

PLAN = stage(0, process="p", max_num_seqs=1, lookahead=1)


def pool(count: int = 2) -> StagePool:
    """A pool of ready replicas."""
    ready = StagePool("p", count)
    for worker in ready.workers:
        worker.status = WorkerStatus.READY
    return ready


def place(pool: StagePool, index: int, arrival: int, priority: int = 0, stage_id: int = 0) -> None:
    slot = SlotState(f"r{arrival}", 1, stage_id, (priority, arrival))
    pool.workers[index].slots[slot.key] = slot


def chosen(pool: StagePool, arrival: int, bound: int | None = None, priority: int = 0) -> int | None:
    worker = pool.choose(PLAN, (priority, arrival), bound)
    return None if worker is None else worker.index


def test_the_shortest_queue_is_chosen() -> None:
    """Fault: requests wait on one replica while another has nothing to do."""
    replicas = pool()
    place(replicas, 0, 1)
    assert [chosen(replicas, 2), chosen(replicas, 3)] == [1, 1]


def test_equals_are_chosen_in_turn() -> None:
    """Fault: one replica gets everything, where requests come one after the other."""
    replicas = pool(3)
    assert [chosen(replicas, arrival) for arrival in range(5)] == [0, 1, 2, 0, 1]
    place(replicas, 2, 9)
    assert [chosen(replicas, arrival) for arrival in range(3)] == [0, 1, 0]


def test_capacity_and_lookahead_of_those_that_precede_fill_a_replica() -> None:
    """Fault: the queue moves into a replica, where a death loses it and a cancel finds it late."""
    replicas = pool(1)
    place(replicas, 0, 1)
    assert chosen(replicas, 3) == 0
    place(replicas, 0, 2)
    assert chosen(replicas, 3) is None


def test_younger_requests_never_keep_an_older_one_out() -> None:
    """Fault: an old request waits behind young ones that wait for it: nothing moves any more."""
    replicas = pool(1)
    place(replicas, 0, 8)
    place(replicas, 0, 9)
    assert chosen(replicas, 3) == 0
    assert chosen(replicas, 10, priority=-1) == 0


def test_requests_in_another_stage_of_the_process_take_no_place() -> None:
    """Fault: one stage's queue keeps requests out of another."""
    replicas = pool(1)
    place(replicas, 0, 1, stage_id=5)
    place(replicas, 0, 2, stage_id=5)
    assert chosen(replicas, 3) == 0


def test_a_replicas_own_capacity_holds() -> None:
    """Fault: the configured size is used where a replica has said its own."""
    replicas = pool(1)
    replicas.workers[0].capacity = {0: 5}
    for arrival in range(5):
        place(replicas, 0, arrival)
    assert chosen(replicas, 9) == 0


def test_a_bound_request_stays_where_it_is() -> None:
    """Fault: stages that share a process are spread over its replicas."""
    replicas = pool()
    place(replicas, 1, 1)
    assert chosen(replicas, 2, bound=1) == 1
    place(replicas, 1, 0)
    assert chosen(replicas, 2, bound=1) is None


def test_a_draining_replica_takes_only_what_it_has_already_and_a_sleeping_one_nothing() -> None:
    """Fault: a replica that drains never gets empty, or cannot finish what it has begun."""
    replicas = pool(1)
    replicas.workers[0].status = WorkerStatus.DRAINING
    assert chosen(replicas, 1) is None
    assert chosen(replicas, 1, bound=0) == 0
    replicas.workers[0].status = WorkerStatus.SLEEPING
    assert chosen(replicas, 1, bound=0) is None


def test_a_pool_is_lost_when_every_replica_is_down_for_good() -> None:
    """Fault: one dead replica makes the stage unavailable, or none ever does."""
    replicas = pool()
    replicas.workers[0].status = WorkerStatus.DOWN
    replicas.workers[0].reason = "no memory"
    assert not replicas.lost
    replicas.workers[1].status = WorkerStatus.STOPPED
    assert replicas.lost
    assert replicas.reason == "no memory"


def test_reports_count_only_from_the_living_of_this_epoch() -> None:
    """Fault: the last words of a dead incarnation change the state of its successor."""
    worker = pool(1).workers[0]
    worker.epoch = 2
    assert worker.reports_for(2)
    assert not worker.reports_for(1)
    worker.status = WorkerStatus.RESTARTING
    assert not worker.reports_for(2)


def test_an_index_that_does_not_exist_is_no_replica() -> None:
    """Fault: a wrong index in a message reaches another replica from behind."""
    assert pool().find(-1) is None
    assert pool().find(2) is None
