"""The board that says what every replica is doing."""

import threading
import time
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
    for wait, change in (
        (board.wait_settled, lambda: board.set(("counter", 0), state="down")),
        (board.wait_stopped, board.end),
    ):
        wait(0.01)
        assert board.phase != "stopped"
        timer = threading.Timer(0.05, change)
        timer.start()
        began = time.monotonic()
        wait(10.0)
        assert 0.0 < time.monotonic() - began < 5.0
        timer.join()
    assert board.settled and board.phase == "stopped"


def test_what_is_wrong_with_the_whole_is_shown(board: StatusBoardState) -> None:
    """Fault: a server that is ready although nothing turns behind it, or a reason that stays when all is well again."""
    for key in (("counter", 0), ("voice", 0), ("voice", 1)):
        board.set(key, state="ready")
    board.blame("nothing turns")
    status = board.status(3)
    assert (status.state, status.reason, status.trouble, status.open_requests) == (
        "degraded",
        "nothing turns",
        "nothing turns",
        3,
    )
    board.blame("")
    assert (board.status(0).state, board.status(0).reason) == ("ready", "")
