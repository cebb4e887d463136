"""What the supervisor says of workers that start, fail and die. Deaths in mid-answer are in test_driver.py."""

import logging
import os
import selectors
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omnistage.core.errors import ErrorInfo
from omnistage.core.payload import PayloadRef
from omnistage.runtime.plan import plan_processes
from omnistage.runtime.status import StatusBoardState
from omnistage.runtime.supervisor import DOUBT_S, StageRuntime
from omnistage.wire.channels import DriverChannel
from omnistage.wire.messages import (
    Event,
    Grant,
    Release,
    ReplicaDown,
    ReplicaUp,
)
from omnistage.wire.worker import Heartbeat, LoadFailed
from tests.runtime.harness import two_stages, workers_of


class Bench:
    """A supervisor with its own selector, turned by hand. `events` is what it has said."""

    def __init__(self, *stages: Any, arena_nbytes: int = 2**20) -> None:
        processes = plan_processes(stages, arena_nbytes=arena_nbytes)
        self.events: list[Event] = []
        self.selector = selectors.DefaultSelector()
        self.channel = DriverChannel()
        self.board = StatusBoardState(processes)
        self.supervisor = StageRuntime(
            processes, self.selector, self.channel, post=self.events.append, drain=self.drain, board=self.board
        )
        self.supervisor.open()
        self.selector.register(self.channel.fileno(), selectors.EVENT_READ, self.drain)

    def drain(self) -> None:
        for identity, message in self.channel.receive():
            incarnation = self.supervisor.incarnation(identity)
            assert incarnation is not None
            self.supervisor.heard(*incarnation, message)

    def until(self, kind: type[Event], count: int = 1) -> Any:
        """Turns until `count` events of a kind were said; the last of them."""
        deadline = time.monotonic() + 15.0
        while len(found := [event for event in self.events if isinstance(event, kind)]) < count:
            assert time.monotonic() < deadline, self.events
            for key, _ in self.selector.select(0.1):
                if self.selector.get_map().get(key.fd) is key:
                    key.data()
            self.supervisor.turn(time.monotonic())
        return found[-1]

    def close(self) -> None:
        self.supervisor.close()
        self.channel.close()
        self.selector.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(*two_stages(tmp_path))
    yield bench
    bench.close()


def test_a_replica_comes_up_with_its_capacity_and_stops_when_asked(bench: Bench) -> None:
    """Fault: a stop that is a kill, or a stopped worker that is never told to be gone."""
    bench.supervisor.start("voice", 0, 1)
    up = bench.until(ReplicaUp)
    assert (up.process, up.replica, up.epoch, up.capacity) == ("voice", 0, 1, {1: 8})
    assert bench.board["voice", 0].state == "ready" and bench.board["voice", 0].progress == 1.0
    bench.supervisor.stop("voice", 0, 2, kill=False)
    assert bench.board["voice", 0].state == "ready"
    bench.supervisor.stop("voice", 0, 1, kill=False)
    down = bench.until(ReplicaDown)
    assert down.reason == "stage voice: was stopped" and not bench.supervisor.running


def test_what_is_hopeless_is_started_once(tmp_path: Path) -> None:
    """Fault: weights that are broken are loaded three times before anybody is told."""
    bench = Bench(*two_stages(tmp_path, loader="tests.runtime.family:load_broken"))
    bench.supervisor.start("voice", 0, 1)
    first = bench.until(ReplicaDown)
    assert first.reason == f"stage voice: no weights in {tmp_path}" and bench.board["voice", 0].state == "down"
    bench.supervisor.start("voice", 0, 2)
    assert [event.reason for event in bench.events if isinstance(event, ReplicaDown)] == [first.reason] * 2
    assert not bench.supervisor.running
    bench.close()


def test_a_replica_that_cannot_even_be_started_is_down_with_the_reason(tmp_path: Path) -> None:
    """Fault: an exception of the operating system ends the runtime."""
    bench = Bench(*two_stages(tmp_path), arena_nbytes=2**60)
    bench.supervisor.start("voice", 0, 1)
    assert bench.until(ReplicaDown).reason.startswith("stage voice: cannot be started: an arena of 1152921504606846976")
    bench.close()


def test_an_upstream_arena_is_handed_over_and_taken_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a reader that lacks the arena of a restarted source, or keeps the memory of all the dead ones."""
    said: list[tuple[int, dict[str, Any]]] = []
    monkeypatch.setattr(
        "omnistage.runtime.handover.send_descriptor",
        lambda line, header, descriptor: said.append((line.fileno(), header)),
    )
    bench.supervisor.start("counter", 0, 1)
    bench.supervisor.start("voice", 0, 1)
    assert [header for _, header in said] == [{"owner": "counter/0", "epoch": 1, "gone": False}]
    bench.until(ReplicaUp, 2)
    bench.supervisor.stop("counter", 0, 1, kill=True)
    bench.until(ReplicaDown)
    bench.supervisor.start("counter", 0, 2)
    headers = [(header["epoch"], header["gone"]) for _, header in said]
    assert headers == [(1, False), (1, True), (2, False)] and len({line for line, _ in said}) == 1


def test_a_release_for_the_dead_goes_to_their_keeper(bench: Bench) -> None:
    """Fault: a release that is sent to the next incarnation, or an arena that is never given back."""
    bench.supervisor.start("counter", 0, 1)
    bench.until(ReplicaUp)
    ref = PayloadRef("shm", "counter/0", 1, 5, nbytes=100000, location="0", generation=1)
    bench.supervisor.arenas.reported(ref)
    bench.supervisor.stop("counter", 0, 1, kill=True)
    bench.until(ReplicaDown)
    assert len(bench.supervisor.arenas) == 1
    bench.supervisor.release(ref, Release(ref=ref))
    assert len(bench.supervisor.arenas) == 0


def test_the_dead_and_strangers_are_not_heard(bench: Bench) -> None:
    """Fault: a heartbeat of an earlier life kills or keeps the present one."""
    bench.supervisor.start("voice", 0, 2)
    bench.supervisor.heard("voice", 0, 1, Heartbeat(step_age_s={1: 1e9}))
    bench.supervisor.heard("voice", 0, 1, LoadFailed(stage_id=1, error=ErrorInfo("config", "old news")))
    assert bench.until(ReplicaUp).epoch == 2
    assert bench.supervisor.incarnation("voice/0/2/somebody") is None


def test_a_worker_that_takes_no_messages_is_killed_after_a_moment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault: messages are lost in silence and the request hangs; or a worker that has just died is misjudged."""
    bench.supervisor.start("voice", 0, 1)
    bench.until(ReplicaUp)
    monkeypatch.setattr(bench.channel, "send", lambda identity, message: False)
    grant = Grant(process="voice", replica=0, epoch=1, request_id="r", attempt=1, source=1, target=-1, credits=1)
    bench.supervisor.send("voice", 0, 9, grant)
    assert bench.supervisor.deadline > time.monotonic() + 2.0
    with caplog.at_level(logging.WARNING):
        bench.supervisor.send("voice", 0, 1, grant)
        assert bench.until(ReplicaDown).reason == "stage voice: takes no messages any more"


def test_closing_ends_what_loads_and_what_runs(bench: Bench) -> None:
    """Fault: a worker that is still loading survives the engine."""
    bench.supervisor.start("counter", 0, 1)
    bench.until(ReplicaUp)
    bench.supervisor.start("voice", 0, 1)
    bench.supervisor.close()
    assert not bench.supervisor.running and not workers_of(os.getpid())


def test_silence_is_doubted_before_it_is_believed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a server that was stopped for a minute comes back and kills every worker before it has read its post; one that says
    nothing is shown as well."""
    bench.supervisor.start("voice", 0, 1)
    bench.until(ReplicaUp)
    late = time.monotonic() + 60.0
    bench.supervisor.turn(late)
    assert bench.supervisor.deadline == late + DOUBT_S
    assert bench.board["voice", 0].state == "silent" and bench.board.state == "degraded"
    assert bench.board["voice", 0].note == "stage voice: has sent no heartbeat for 4 s"
    bench.supervisor.heard("voice", 0, 1, Heartbeat(step_age_s={}))
    bench.supervisor.turn(time.monotonic())
    assert bench.board["voice", 0].state == "ready" and bench.board["voice", 0].note == ""
    bench.supervisor.turn(late)
    assert bench.board["voice", 0].state == "silent"
    bench.supervisor.turn(late + DOUBT_S)
    assert bench.until(ReplicaDown).reason == "stage voice: has sent no heartbeat for 20 s"


def test_a_reason_says_once_whose_it_is(tmp_path: Path) -> None:
    """Fault: `stage voice: stage voice: ...` where a stage's own error names it already."""
    bench = Bench(*two_stages(tmp_path))
    bench.supervisor.start("voice", 0, 1)
    told = ErrorInfo("config", "stage voice: block_size: 0 is not accepted")
    bench.supervisor.heard("voice", 0, 1, LoadFailed(stage_id=1, error=told))
    bench.supervisor.stop("voice", 0, 1, kill=True)
    assert bench.until(ReplicaDown).reason == told.message
    bench.close()
