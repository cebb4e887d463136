"""The driver process from inside: its loop in a thread of the test, at the other end of its sockets, without stages."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from omnistage.orchestrator.plan import OrchestratorConfig
from omnistage.runtime import engine_process
from omnistage.runtime.agenda import CALLERS
from omnistage.runtime.driver_process import DriverPlan
from omnistage.runtime.engine_process import EXIT_FAILED, EXIT_STOPPED, EngineProcess
from omnistage.wire.engine import (
    DriverBeat,
    DriverFailed,
    Ended,
    GaugesShown,
    Inspect,
    Inspected,
    ToDriver,
    pack_for_driver,
    unpack_from_driver,
)
from omnistage.wire.messages import Arrived, ControlCalled, ControlReply, ShutdownRequested
from omnistage.wire.stream import FrameStream
from tests.runtime.harness import request


class Server:
    """The other end. `heard` is everything that was said but heartbeats."""

    def __init__(self, heartbeat_s: float = 1.0, record: Path | None = None) -> None:
        ours, theirs = socket.socketpair()
        self.line, their_line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.stream = FrameStream(ours)
        plan = DriverPlan(
            config=OrchestratorConfig(stages=()),
            processes=(),
            heartbeat_s=heartbeat_s,
            record_events=None if record is None else str(record),
        )
        self.process = EngineProcess(plan, theirs, their_line)
        self._theirs = their_line
        self.heard: list[Any] = []
        self.beats = 0
        self.transmissions = 0
        self.codes: list[int] = []
        self.thread = threading.Thread(target=lambda: self.codes.append(self.process.serve()), daemon=True)
        self.thread.start()

    def say(self, message: ToDriver) -> None:
        self.stream.send(pack_for_driver(message))

    def hear(self, kind: type[Any], timeout_s: float = 5.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for frames in self.stream.receive():
                messages, _ = unpack_from_driver(frames)
                self.transmissions += any(isinstance(message, Ended) for message in messages)
                self.beats += sum(isinstance(message, DriverBeat) for message in messages)
                self.heard += [message for message in messages if not isinstance(message, DriverBeat)]
            for message in self.heard:
                if isinstance(message, kind):
                    self.heard.remove(message)
                    return message
            time.sleep(0.005)
        pytest.fail(f"no {kind.__name__} within {timeout_s} s: {self.heard}")

    def end(self, timeout_s: float = 5.0) -> int:
        self.thread.join(timeout_s)
        return self.codes[0]

    def close(self) -> None:
        self.stream.close()
        self.thread.join(5.0)
        self.process._stream.close()
        self.line.close()
        self._theirs.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(heartbeat_s=0.05)
    yield server
    server.close()


def test_what_is_asked_is_answered(server: Server) -> None:
    """Fault: a word of the server's that the driver does not hear, or an answer under another name."""
    server.say(Arrived(now=0.0, request=request("r")))
    ended = server.hear(Ended)
    assert (ended.request_id, ended.outcome) == ("r", "failed")
    server.say(ControlCalled(now=0.0, call_id="17", name="fly"))
    assert server.hear(ControlReply).call_id == "17"
    server.say(Inspect(call_id="18"))
    inspected = server.hear(Inspected)
    assert inspected.call_id == "18" and inspected.held.keys() == {"process", "machine", "runtime"}
    time.sleep(0.2)
    server.say(ShutdownRequested(now=0.0, drain_timeout_s=5.0))
    assert server.end() == EXIT_STOPPED
    with pytest.raises(pytest.fail.Exception):
        server.hear(Inspected, 0.05)
    assert server.beats >= 3


@pytest.mark.parametrize(("together_s", "transmissions"), [(60.0, 1), (0.0, 32 // CALLERS)])
def test_what_is_said_at_one_time_wakes_the_server_once(
    monkeypatch: pytest.MonkeyPatch, together_s: float, transmissions: int
) -> None:
    """Fault: every round of what is heard wakes the server; or a driver that always has something to do says nothing at all."""
    monkeypatch.setattr(engine_process, "TOGETHER_S", together_s)
    server = Server(heartbeat_s=60.0)
    server.say(Inspect(call_id="1"))
    server.hear(Inspected)
    server.stream.send(pack_for_driver(*(Arrived(now=0.0, request=request(f"r{number}")) for number in range(32))))
    for _ in range(32):
        server.hear(Ended)
    assert server.transmissions == transmissions  # of ends: figures may come in some of their own
    server.close()


def test_it_ends_with_its_server(server: Server) -> None:
    """Fault: a driver, and with it its workers, that outlives a server that was killed."""
    server.say(Arrived(now=0.0, request=request("r")))
    server.hear(Ended)
    server.stream.close()
    assert server.end() == EXIT_STOPPED


def test_a_fault_of_its_own_is_its_last_word(server: Server) -> None:
    """Fault: the server is told that a process ended, and not of what; the callers hear of it twice."""
    server.process._machine._state = None  # type: ignore[attr-defined]
    server.say(Arrived(now=0.0, request=request("r")))
    failed = server.hear(DriverFailed)
    assert failed.reason.startswith("AttributeError: ")
    assert server.end() == EXIT_FAILED
    assert not any(isinstance(message, Ended) for message in server.heard)


def test_a_server_that_does_not_read_is_not_written_to_for_ever(server: Server) -> None:
    """Fault: heartbeats pile up in the driver while its server is stopped."""
    server.say(Inspect(call_id="1"))
    server.hear(Inspected)
    stream = server.process._stream
    stream.send([bytes(2_000_000)])
    time.sleep(0.1)  # what was on its way is
    waiting = stream.waiting_nbytes
    assert waiting > 1_000_000
    time.sleep(0.3)
    assert stream.waiting_nbytes <= waiting


def test_figures_are_shown_when_they_have_changed(server: Server) -> None:
    """Fault: every heartbeat of a worker at rest wakes the server too."""
    key = "main", 0
    for figures in ({"running": 1.0}, {"running": 1.0}, {"running": 2.0}):
        server.process._inbox.put(partial(server.process._board.show_gauges, key, {"thinker": dict(figures)}))
        server.say(Inspect(call_id=str(figures)))
        server.hear(Inspected)
    shown = [message.by_stage["thinker"]["running"] for message in server.heard if isinstance(message, GaugesShown)]
    assert shown == [1.0, 2.0]


def test_a_record_that_cannot_be_made_keeps_no_driver_from_serving(tmp_path: Path) -> None:
    """Fault: a folder that was removed meanwhile turns the death of one driver into a crash loop."""
    server = Server(record=tmp_path / "gone" / "events.2")
    server.say(Arrived(now=0.0, request=request("r")))
    assert server.hear(Ended).request_id == "r"
    server.close()
    assert server.codes == [EXIT_STOPPED]


def test_it_imports_nothing_of_the_models() -> None:
    """Fault: torch in the driver's process."""
    program = "import sys, omnistage.runtime.engine_process; print(*sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(result.stdout.split())
    assert "omnistage.runtime.driver" in loaded
    assert not loaded & {"torch", "transformers", "fastapi", "prometheus_client", "yaml"}
