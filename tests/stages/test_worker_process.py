"""A real worker process over the real channel: load, serve, cancel, stop, die with its server.

Faults pinned: a worker that is not ready when it says so or drags torch into a stage without it; a step that hangs holds
back a cancel, a shutdown's kill or the life line; a broken loader leaves a silent process; an idle worker burns CPU; a
signal for the process group ends a worker that still has requests.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import omnistage
from omnistage.config.stage import StageConfig
from omnistage.connectors.descriptors import open_lifeline
from omnistage.wire.channels import DriverChannel
from omnistage.wire.messages import (
    CLIENT,
    Cancel,
    CancelDone,
    Emitted,
    StageDone,
    StageFailed,
    Submit,
)
from omnistage.wire.plan import WorkerPlan
from omnistage.wire.worker import (
    Heartbeat,
    Hello,
    LoadFailed,
    Ready,
    Shutdown,
    StepReport,
    ToWorker,
)
from tests.fakes import echo_config, request_of

ROOT = Path(__file__).parents[2]
SOURCES = str(Path(omnistage.__file__).parents[1])  # those that are tested, wherever they lie
DEADLINE_S = 20.0
WHERE: dict[str, Any] = {"process": "main", "replica": 0, "epoch": 1}
IDENTITY = "main/0/1/token"


@dataclass
class Server:
    """The other side of one worker."""

    worker: subprocess.Popen[bytes]
    channel: DriverChannel
    life_line: socket.socket
    received: list[Any] = field(default_factory=list)

    def say(self, message: ToWorker) -> None:
        assert self.channel.send(IDENTITY, message)

    def until(self, kind: type, *, deadline_s: float = DEADLINE_S) -> Any:
        """Waits for the next message or event of a kind; what comes before it is kept in `received`."""
        ends_s = time.monotonic() + deadline_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel.fileno(), selectors.EVENT_READ)
            while time.monotonic() < ends_s:
                for found in self.received:
                    if isinstance(found, kind):
                        self.received.remove(found)
                        return found
                selector.select(0.2)
                for _, message in self.channel.receive():
                    items = message.items if isinstance(message, StepReport) else (message,)
                    self.received.extend(items)
        pytest.fail(f"no {kind.__name__} within {deadline_s} s; there were {self.received}")

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.worker.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(*stages: StageConfig) -> Server:
    channel = DriverChannel()
    address = channel.bind()
    ours, theirs = open_lifeline()
    plan = WorkerPlan(
        **WHERE,
        stages=stages,
        address=address,
        identity=IDENTITY,
        life_line=theirs.fileno(),
        heartbeat_s=0.2,
    )
    worker = subprocess.Popen(
        [sys.executable, "-m", "omnistage.stages.worker"],
        stdin=subprocess.PIPE,
        pass_fds=[theirs.fileno()],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([SOURCES, str(ROOT)])},
        start_new_session=True,
    )
    theirs.close()
    assert worker.stdin is not None
    worker.stdin.write(plan.encode())
    worker.stdin.close()
    return Server(worker, channel, ours)


def end(server: Server) -> None:
    server.life_line.close()
    server.channel.close()
    if server.worker.poll() is None:
        server.worker.kill()
    server.worker.wait(DEADLINE_S)


@pytest.fixture
def server() -> Iterator[Server]:
    started = start(echo_config())
    try:
        yield started
    finally:
        end(started)


def submit(text: str, request_id: str = "r") -> Submit:
    return Submit(
        **WHERE, stage_id=0, request=request_of(text, request_id), attempt=1, order=(0, 0), active_targets=(CLIENT,)
    )


def test_a_worker_loads_serves_and_ends_after_shutdown(server: Server) -> None:
    """Fault: Ready before the stages have loaded, a lost last word, a process that outlives Shutdown."""
    hello = server.until(Hello)
    assert isinstance(hello, Hello)
    assert hello.pid == server.worker.pid
    ready = server.until(Ready)
    assert isinstance(ready, Ready)
    assert ready.capacity == {0: 8}
    server.say(submit("good morning"))
    server.until(StageDone)
    words = [item.ref.metadata["text"] for item in server.received if isinstance(item, Emitted) and item.ref]
    assert words == ["good", " morning"]
    assert "torch" not in Path(f"/proc/{server.worker.pid}/maps").read_text()
    server.say(Shutdown())
    assert server.worker.wait(5) == 0


def test_a_cancel_reaches_a_step_that_works_for_that_request_alone(server: Server) -> None:
    """Fault: the cancel waits in the mailbox until a step of a minute is over."""
    server.until(Ready)
    server.say(submit("hang"))
    server.until(Heartbeat)
    time.sleep(0.3)
    server.say(Cancel(**WHERE, request_id="r", attempt=1, stage_id=0))
    server.until(CancelDone, deadline_s=2)
    server.say(submit("next", "s"))
    assert isinstance(server.until(StageDone, deadline_s=2), StageDone)


def test_a_heartbeat_tells_how_long_a_step_has_been_running(server: Server) -> None:
    """Fault: a hung step that nobody sees."""
    server.until(Ready)
    server.say(submit("hang"))
    ends_s = time.monotonic() + 5
    age_s = 0.0
    while age_s < 0.5 and time.monotonic() < ends_s:
        beat = server.until(Heartbeat)
        assert isinstance(beat, Heartbeat)
        age_s = beat.step_age_s[0]
    assert age_s >= 0.5


def test_the_end_of_the_server_ends_a_worker_whose_step_hangs(server: Server) -> None:
    """Fault: orphans that hold memory and devices."""
    server.until(Ready)
    server.say(submit("hang"))
    server.until(Heartbeat)
    server.life_line.close()
    assert server.worker.wait(1.5) == 2


def test_signals_of_the_group_are_left_to_the_server(server: Server) -> None:
    """Fault: Ctrl+C kills the workers before the server has drained."""
    server.until(Ready)
    server.worker.send_signal(signal.SIGINT)
    server.worker.send_signal(signal.SIGTERM)
    server.say(submit("still here"))
    assert isinstance(server.until(StageDone), StageDone)


def test_a_failing_request_fails_alone(server: Server) -> None:
    """Fault: one request takes the process with it."""
    server.until(Ready)
    server.say(submit("fail", "bad"))
    failed = server.until(StageFailed)
    assert isinstance(failed, StageFailed)
    assert failed.error.stage == "writer"
    assert "told to fail" in failed.error.message
    server.say(submit("fine", "good"))
    assert isinstance(server.until(StageDone), StageDone)


def test_an_idle_worker_sleeps(server: Server) -> None:
    """Fault: a loop that polls (more than 1 % of a core)."""
    server.until(Ready)
    server.say(submit("one"))
    server.until(StageDone)
    before_s = server.cpu_s()
    time.sleep(2.0)
    assert server.cpu_s() - before_s <= 0.03


def test_a_loader_that_fails_is_told_in_one_line() -> None:
    """Fault: a traceback on stderr and a server that waits for its start timeout."""
    server = start(echo_config(loader="tests.fakes:load_nothing"))
    try:
        failed = server.until(LoadFailed)
        assert isinstance(failed, LoadFailed)
        assert failed.error.stage == "writer"
        assert failed.error.message == "FileNotFoundError: no weights in nowhere"
        assert server.worker.wait(5) == 1
    finally:
        end(server)


def test_a_hook_that_does_not_resolve_is_named() -> None:
    """Fault: a misspelt hook shows only when the first request comes."""
    server = start(echo_config(loader="tests.fakes:load_ech0"))
    try:
        failed = server.until(LoadFailed)
        assert isinstance(failed, LoadFailed)
        assert "load_ech0" in failed.error.message
    finally:
        end(server)
