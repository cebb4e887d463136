"""The board that says what every replica is doing."""

import threading
from pathlib import Path

import pytest

from omnistage.runtime.plan import plan_processes
from omnistage.runtime.status import StatusBoardState
from tests.runtime.harness import two_stages


@pytest.fixture
def board(tmp_path: Path) -> StatusBoardState:
    """Two stages, the second in two replicas."""
    return StatusBoardState(plan_processes(two_stages(tmp_path, num_replicas=2)))


def test_a_stage_is_as_well_as_its_best_replica(board: StatusBoardState) -> None:
    """Fault: a stage that is said to be down while one of its replicas serves."""
    assert board.stages == {"counter": "starting", "voice": "starting"} and board.state == "starting"
    board.set(("counter", 0), state="ready")
    board.set(("voice", 1), state="ready")
    assert board.stages == {"counter": "ready", "voice": "ready"} and board.settled and board.state == "starting"
    board.set(("voice", 0), state="down", note="why")
    assert board.state == "degraded" and board.stages["voice"] == "ready"
    board.set(("voice", 1), state="restarting")
    assert board.stages["voice"] == "restarting" and not board.settled
    board.set(("voice", 1), state="down")
    assert board.stages["voice"] == "down" and board.settled
    board.end()
    assert board.state == "stopped" and {replica.state for replica in board.replicas} == {"down"}


def test_gauges_are_added_up_over_replicas(board: StatusBoardState) -> None:
    """Fault: figures that flicker between replicas, or that outlive the replica that said them."""
    board.show_gauges(("voice", 0), {"voice": {"running": 2, "waiting": 0}})
    board.show_gauges(("voice", 1), {"voice": {"running": 3}})
    assert board.gauges == {"voice": {"running": 5, "waiting": 0}}
    assert board.replica_gauges == {("voice", 0): {"running": 2, "waiting": 0}, ("voice", 1): {"running": 3}}
    board.show_gauges(("voice", 0), {})
    assert board.gauges == {"voice": {"running": 3}}


def test_who_waits_is_woken_by_a_change_and_by_the_clock(board: StatusBoardState) -> None:
    """Fault: a wait that polls, or has no deadline."""
    assert not board.wait_for(lambda: board.settled, 0.01)
    timer = threading.Timer(0.05, lambda: board.set(("counter", 0), state="down"))
    timer.start()
    assert board.wait_for(lambda: board.settled, 10.0)
    timer.join()
