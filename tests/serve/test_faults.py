"""What a server does when something is killed or leaves, with the built-in model over a real port.

One server for the module; every test leaves it ready, with nothing open. Times are those of a machine of two busy cores.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.processes import running
from tests.runtime.harness import cpu_s

pytestmark = pytest.mark.weights

START_S = 60.0
STORY = {
    "messages": [{"role": "user", "content": "Tell me a long story about the sea, with many sentences."}],
    "modalities": ["text", "audio"],
    "max_tokens": 400,
    "ignore_eos": True,
    "stream": True,
}
SHORT = {**STORY, "messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 8, "ignore_eos": False}


@dataclass(frozen=True, slots=True)
class Served:
    """A running server, a client of it, and how to look into its processes."""

    process: subprocess.Popen[str]
    client: httpx.Client

    def workers(self) -> dict[str, int]:
        """Process ids by stage."""
        workers = self.client.get("/debug/state").json()["workers"]
        return {name.removesuffix("/0"): worker["process"]["pid"] for name, worker in workers.items()}

    def health(self) -> dict[str, Any]:
        body: dict[str, Any] = self.client.get("/health").json()
        return body

    def metric(self, name: str) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def stream(self, body: dict[str, Any], on_sound: Callable[[], None]) -> list[dict[str, Any]]:
        """All events; `on_sound` is called at the first that carries samples."""
        events: list[dict[str, Any]] = []
        with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                events.append(json.loads(line.removeprefix("data: ")))
                if '"data":' in line:
                    on_sound()
                    on_sound = _nothing
        return events


def _nothing() -> None: ...


@contextmanager
def started() -> Iterator[Served]:
    """A server that is ready, and does not outlive the block."""
    program = "from omnistage.cli.main import main; main()"
    command = [sys.executable, "-c", program, "serve", "demo", "--port", "0", "--debug"]
    with running(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = re.search(r"http://[\d.:]+", process.stderr.readline())
        assert address is not None
        with httpx.Client(base_url=address[0], timeout=START_S) as client:
            served = Served(process, client)
            wait_until(lambda: served.health()["status"] == "ready", START_S)
            yield served


def wait_until(holds: Callable[[], bool], timeout_s: float) -> float:
    """How long it took, in seconds."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s} s"
        time.sleep(0.02)
    return time.monotonic() - began


def since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def begun_s(pid: int) -> float:
    """When it was started, as `since_boot_s` has it."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def left_behind() -> set[str]:
    """Names in /dev/shm, and what of ours stands among temporary files."""
    temporary = (name for name in os.listdir(tempfile.gettempdir()) if "omnistage" in name)
    return {*os.listdir("/dev/shm"), *temporary}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with started() as one:
        yield one
        one.client.close()
        one.process.terminate()
        one.process.communicate(timeout=60)


def test_a_killed_speaker_costs_one_error_and_comes_back(served: Served) -> None:
    """Fault: a client that waits for a dead stage, an error that is told twice or not at all, a server that stays ill or
    says it is well. What it takes to speak again is counted in processor time: a busy machine takes as long as it likes for the
    answer itself, which is most of it."""
    killed_at: list[float] = []
    ill: list[dict[str, Any]] = []

    def kill() -> None:
        os.kill(served.workers()["speaker"], signal.SIGKILL)
        killed_at.append(since_boot_s())
        while (health := served.health())["stages"]["speaker"] == "ready":
            assert since_boot_s() - killed_at[0] < 2.0, health
        ill.append(health)

    events = served.stream(STORY, kill)
    told_s = since_boot_s() - killed_at[0]
    errors = [event["error"] for event in events if "error" in event]
    assert (len(errors), events[-1]) == (1, {"error": errors[0]})
    assert "speaker" in errors[0]["message"]
    assert told_s < 2.0
    assert (ill[0]["status"], ill[0]["stages"]["thinker"]) == ("degraded", "ready")
    assert "killed by SIGKILL" in ill[0]["replicas"][0]["note"]
    thinker = served.workers()["thinker"]
    before_s = cpu_s(thinker)
    heard: list[bool] = []
    after = served.stream(SHORT, lambda: heard.append(True))
    assert heard and not any("error" in event for event in after)
    speaker = served.workers()["speaker"]
    assert begun_s(speaker) - killed_at[0] < 5.0
    assert cpu_s(thinker) - before_s + cpu_s(speaker) < 10.0
    assert served.health()["status"] == "ready"


@pytest.mark.parametrize("sounds", [0, 1])
def test_a_client_that_leaves_stops_both_stages(served: Served, sounds: int) -> None:
    """Fault: the thinker writes, or the speaker speaks, to its end for nobody, in the middle of an answer or before its
    first sound. Counted in processor time, of which a stage that has stopped takes none."""
    workers = list(served.workers().values())
    assert len(workers) == 3  # thinker, speaker, painter
    with served.client.stream("POST", "/v1/chat/completions", json=STORY) as response:
        heard = 0
        for line in response.iter_lines():
            heard += '"data":' in line
            if heard == sounds and line:
                break
    wait_until(lambda: served.metric("omnistage_open_requests") == 0, 1.0)
    time.sleep(0.5)  # a step of the thinker, and what the voice model does until it looks whether to go on
    before = [cpu_s(pid) for pid in workers]
    time.sleep(1.5)
    assert [cpu_s(pid) - then < 0.2 for pid, then in zip(workers, before, strict=True)] == [True] * 3
    assert not any("error" in event for event in served.stream(SHORT, _nothing))


def test_a_signal_ends_everything_and_leaves_nothing() -> None:
    """Fault: a worker, a shared memory segment or a file outlives a server that was told to end while it was at work."""
    before = left_behind()
    with started() as served:
        workers = list(served.workers().values())
        assert len(workers) == 3  # thinker, speaker, painter
        events = served.stream({**STORY, "max_tokens": 16}, served.process.terminate)
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        served.client.close()
        served.process.communicate(timeout=20)
        assert served.process.returncode == 0
    assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == []
    assert left_behind() <= before
