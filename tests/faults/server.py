"""A server process from outside: how it is started, asked, measured, killed, and what of it is left.

Every process of a server, whatever its parent, is found by a mark in its environment. Sizes in bytes, times in seconds.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

MARK = "OMNISTAGE_FAULTS_MARK"
START_S = 60.0
ASK_S = 5.0


OTHERS = {"helper": "omnistage.stages.prepare.helper", "driver": "omnistage.runtime.engine_process", "zygote": None}
"""What stands in their command lines; a zygote shares its with its children and is known from /debug/state."""


def killed(pid: int | None) -> int | None:
    """kill -9; None if it was gone already: whoever is told to die may do so at any time."""
    if pid is not None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
    return pid


def driver_of(state: dict[str, Any]) -> dict[str, Any]:
    """What of /debug/state is the driver's, wherever it runs; {} where it has not answered."""
    found: dict[str, Any] = state.get("driver") or state.get("server") or {}
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def eventually(condition: Callable[[], object], timeout_s: float) -> bool:
    """Asks until it holds; False at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


class ServerProcess:
    """`python -m tests.faults.served serve MODEL --debug ...` in a temporary folder of its own; `prefix` is put before the
    command."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        model: str = "faults",
        port: int = 0,
        environment: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.mark = secrets.token_hex(8)
        self.folder = folder
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        self._words = folder / f"words-{self.mark}.txt"
        set_here = {"TMPDIR": str(folder / "tmp"), MARK: self.mark, "OMP_NUM_THREADS": "1", **(environment or {})}
        command = [*prefix, sys.executable, "-m", "tests.faults.served", "serve", model, "--debug"]
        command += ["--port", str(port), *flags]
        with self._words.open("wb") as words:
            self.process = subprocess.Popen(
                command, stdout=words, stderr=words, env={**os.environ, **set_here}, start_new_session=True
            )
        self.port = port

    @property
    def words(self) -> str:
        """All that it has said."""
        return self._words.read_text(errors="replace")

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Raises RuntimeError, with its last words, if it has ended or is not ready in time."""
        if not eventually(lambda: self.process.poll() is not None or self._finds_port(), timeout_s):
            raise RuntimeError(f"it never listened: {self.words[-2000:]}")
        if not eventually(lambda: self.process.poll() is not None or self.health()[0] == 200, timeout_s):
            raise RuntimeError(f"it was not ready in {timeout_s} s: {self.words[-2000:]}")
        if self.process.poll() is not None:
            raise RuntimeError(f"it has ended with {self.process.returncode}: {self.words[-2000:]}")

    def _finds_port(self) -> bool:
        found = re.search(r"listening on http://[^:]+:(\d+)", self.words)
        if found:
            self.port = int(found[1])
        return found is not None

    # ---- what it says ----

    def ask(self, path: str) -> tuple[int, bytes]:
        """Status and body; (0, b"") if nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=ASK_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""

    def health(self) -> tuple[int, dict[str, Any]]:
        status, body = self.ask("/health")
        return status, json.loads(body) if body else {}

    def debug_state(self) -> dict[str, Any]:
        """What every process holds."""
        status, body = self.ask("/debug/state")
        found: dict[str, Any] = json.loads(body) if status == 200 else {"error": f"{status}: {body[:200]!r}"}
        return found

    def wait_for_zygote(self) -> bool:
        """Until restarts are forks."""
        return eventually(lambda: self.other_pid("zygote"), START_S)

    def worker_pid(self, stage: str) -> int | None:
        """Of the process that is named like the stage; None while there is none that is ready."""
        state, pid = json.loads(self.ask("/replicas")[1] or b"{}").get(stage, ("", None))
        return pid if state == "ready" else None

    def counters(self) -> dict[str, float]:
        """Every sample of /metrics by name and labels, "omnistage_requests_total{outcome=finished}"."""
        values = {}
        for family in text_string_to_metric_families(self.ask("/metrics")[1].decode()):
            for sample in family.samples:
                labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
                values[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return values

    # ---- what can be seen of its processes ----

    def pids(self) -> list[int]:
        """Everything that runs with its mark, zombies excepted."""
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and self._is_mine(entry)]

    def _is_mine(self, entry: Path) -> bool:
        try:
            marked = f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes()
            return marked and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def rss_nbytes(self) -> dict[int, int]:
        """Resident memory by pid, shared memory not counted: an arena is allocated once and for all."""
        found = {}
        for pid in self.pids():
            try:
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            except OSError:
                continue
            own = [int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssFile"))]
            found[pid] = sum(own)
        return found

    def descriptors(self) -> int:
        """Open descriptors of the server's own process."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def files(self) -> set[str]:
        """What bears its name in shared memory, and everything in its temporary folder."""
        shared = {str(path) for path in Path("/dev/shm").glob("omnistage*")}
        return shared | {str(path) for path in (self.folder / "tmp").rglob("*")}

    # ---- its end ----

    def kill_some_other(self, kind: str) -> int | None:
        """kill -9 of a process that is neither the server nor a worker, by its kind in OTHERS; None if there is none now."""
        return killed(self.other_pid(kind))

    def other_pid(self, kind: str) -> int | None:
        part = OTHERS[kind]
        if part is not None:
            return next((pid for pid in self.pids() if part in _command(pid)), None)
        pid: int | None = driver_of(self.debug_state()).get("runtime", {}).get("zygote", {}).get("pid")
        return pid

    def kill_worker(self, stage: str) -> int | None:
        """kill -9; the pid, None if there is none now."""
        return killed(self.worker_pid(stage))

    def kill(self) -> None:
        """kill -9 of the server alone."""
        self.process.kill()
        self.process.wait(10)

    def stop(self, timeout_s: float = 45.0) -> int:
        """In order; its exit code. What is left after `timeout_s` is killed."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(10)

    def sweep(self) -> list[int]:
        """Kills what is left of it; the pids that were left."""
        left = self.pids()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return left
