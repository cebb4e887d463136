"""A server under measurement: started by exec like a user starts it, asked over plain sockets, its whole process tree counted."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

COMMAND = (str(Path(sys.executable).with_name("omnistage")), "serve")
OWN_COMMAND = (sys.executable, "-m", "benchmarks.served", "serve")
"""Knows the benchmarks' own pipelines too."""
_TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Server:
    """`COMMAND MODEL --port N FLAGS`; `started` is the monotonic time just before exec."""

    def __init__(
        self,
        model: str,
        *flags: str,
        command: tuple[str, ...] = COMMAND,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        arguments = [*command, model, "--port", str(self.port), *flags]
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        """The open response of one request. ConnectionError while nobody listens yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        return connection.getresponse()

    def wait(self, accepted: tuple[int, ...], timeout_s: float = 120.0, pause_s: float = 0.002) -> float:
        """Seconds from exec until /health answers with one of the accepted status codes."""
        while time.monotonic() - self.started < timeout_s:
            if self.process.poll() is not None:
                assert self.process.stderr is not None
                raise RuntimeError(
                    f"the server ended with {self.process.returncode}: {self.process.stderr.read()[-2000:]}"
                )
            with contextlib.suppress(ConnectionError, TimeoutError, http.client.HTTPException):
                if self.ask("GET", "/health").status in accepted:
                    return time.monotonic() - self.started
            time.sleep(pause_s)
        raise TimeoutError(f"/health did not answer {accepted} within {timeout_s} s")

    def processes(self) -> list[int]:
        """The server and everything below it."""
        return tree_of(self.process.pid)

    def cpu_s(self) -> float:
        """User and system seconds of the whole tree so far."""
        return sum(cpu_of(pid) for pid in self.processes())

    def stop(self) -> float:
        """Ends it as an operator would; seconds until the process has ended."""
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        return time.monotonic() - begun


@contextlib.contextmanager
def serving(
    model: str, *flags: str, command: tuple[str, ...] = COMMAND, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    server = Server(model, *flags, command=command, environment=environment)
    try:
        yield server
    finally:
        server.stop()


def tree_of(root: int) -> list[int]:
    """A process and everything below it."""
    parents = {int(entry.name): parent_of(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    tree = [root]
    for pid in tree:
        tree += [child for child, parent in parents.items() if parent == pid]
    return tree


def parent_of(pid: int) -> int:
    return int(fields[1]) if (fields := _stat(pid)) else 0


def cpu_of(pid: int) -> float:
    return (int(fields[11]) + int(fields[12])) / _TICKS if (fields := _stat(pid)) else 0.0


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; empty for a process that has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
