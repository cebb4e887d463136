"""What a driver process says, brought to callers, board and observer: with fakes, in one thread."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnistage.core.errors import ErrorInfo
from omnistage.core.spec import TensorSpec
from omnistage.runtime.base import ClientClosed, ClientItem, ClientRestarted
from omnistage.runtime.plan import plan_processes
from omnistage.runtime.remote_state import RemoteState
from omnistage.runtime.status import StatusBoardState
from omnistage.wire.engine import Delivered, DriverFailed, Ended, GaugesShown, Inspected, ItemSent, ReplicaShown
from omnistage.wire.messages import ControlReply, Restarted
from tests.runtime.harness import two_stages

DIED = ErrorInfo("stage_unavailable", "it died")


@pytest.fixture
def board(tmp_path: Path) -> StatusBoardState:
    return StatusBoardState(plan_processes(two_stages(tmp_path)))


@pytest.fixture
def state(board: StatusBoardState) -> RemoteState:
    return RemoteState(board, None)


def ended(request_id: str) -> Ended:
    return Ended(
        request_id=request_id,
        outcome="finished",
        error=None,
        usage={},
        times={},
        reasons={},
        attempts=1,
        edges={},
        waiting_s={},
    )


def delivered(seq: int, *names: str) -> Delivered:
    return Delivered(
        request_id="r",
        attempt=1,
        source=1,
        seq=seq,
        final_output_type="audio",
        tensors={name: TensorSpec("int16", (2,)) for name in names},
        metadata={"seq": seq},
        last=False,
    )


def shown(state: str, restarts: int, process: str = "voice") -> ReplicaShown:
    return ReplicaShown(process=process, replica=0, state=state, note="n", progress=0.5, pid=7, restarts=restarts)


def test_items_find_their_caller_with_their_tensors(state: RemoteState) -> None:
    """Fault: tensors of one item in another, or memory that a caller can change."""
    told: list[Any] = []
    state.sinks["r"] = told.append
    tensors = iter([bytearray(b"\x01\x00\x02\x00"), bytearray(b"\x03\x00\x04\x00"), bytearray(b"\x05\x00\x06\x00")])
    for message in (delivered(0, "a", "b"), Restarted(request_id="r", attempt=2), delivered(1, "a"), ended("r")):
        state.hear(message, tensors)
    first, restarted, second, closed = told
    assert isinstance(first, ClientItem) and isinstance(second, ClientItem)
    np.testing.assert_array_equal(first.payload.numpy("b"), [3, 4])
    np.testing.assert_array_equal(second.payload.numpy("a"), [5, 6])
    assert not first.payload.numpy("b").flags.writeable and second.payload.metadata == {"seq": 1}
    assert restarted == ClientRestarted("r", 2) and closed == ClientClosed("r", "finished")
    state.hear(delivered(2), tensors)
    assert len(told) == 4 and state.holdings() == {"sinks": 0, "controls": 0, "inspections": 0}


def test_a_death_ends_everything_once(state: RemoteState, board: StatusBoardState) -> None:
    """Fault: a caller that is told twice or never, or one whose own exception keeps the others from being told."""
    told: list[Any] = []

    def faulty(_: object) -> None:
        raise RuntimeError("a caller's own fault")

    state.sinks.update({"bad": faulty, "r": told.append, "open": told.append})
    state.controls["1"] = lambda results, error: told.append((results, error))
    state.inspections["2"] = told.append
    state.hear(ended("r"), iter(()))
    state.lose(DIED, comes_back=True)
    state.lose(DIED, comes_back=True)
    state.hear(ControlReply(call_id="1"), iter(()))
    state.hear(Inspected(call_id="2", held={}), iter(()))
    assert told == [ClientClosed("r", "finished"), ClientClosed("open", "failed", DIED), ({}, DIED), None]
    assert {replica.state for replica in board.replicas} == {"restarting"}
    state.lose(DIED, comes_back=False)
    assert {(replica.state, replica.note) for replica in board.replicas} == {("down", "it died")}


def test_restarts_add_up_over_drivers(state: RemoteState, board: StatusBoardState) -> None:
    """Fault: a metric that falls, figures of the dead that stay on show, a restart that looks like a first start."""
    state.hear(shown("ready", 2), iter(()))
    state.hear(GaugesShown(process="voice", replica=0, by_stage={"voice": {"running": 1}}), iter(()))
    assert board.gauges == {"voice": {"running": 1}}
    state.lose(DIED, comes_back=True)
    assert board.gauges == {} and board["voice", 0].pid is None
    state.hear(shown("starting", 0), iter(()))
    replica = board["voice", 0]
    assert (replica.state, replica.restarts, replica.pid) == ("restarting", 3, 7)
    state.hear(shown("ready", 1), iter(()))
    assert (board["voice", 0].state, board["voice", 0].restarts) == ("ready", 4)


def test_last_words_are_kept_and_nobody_need_measure(state: RemoteState) -> None:
    """Fault: a driver's reason is lost; a runtime without an observer raises."""
    state.hear(ItemSent(source="a", target="b", nbytes=1), iter(()))
    state.hear(DriverFailed(reason="ValueError: x"), iter(()))
    assert state.fault == "ValueError: x"
