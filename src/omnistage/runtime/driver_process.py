"""A driver in a process of its own, from the server's side: what it is told at its start, and the ends by which it is held.

Started by exec, never `multiprocessing`, like a worker (runtime.launch). Its plan travels as JSON on its standard input: the
machine's configuration and the processes' plans as they were resolved, so it asks neither files nor the registry. Two pairs of
sockets lead to it: `channel` carries messages (wire.engine), `life_line` is at end-of-file when the server is gone; up it come
pidfds of the workers, so that whatever becomes of the driver, the server can end what it started. Knows nothing of messages.
"""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from omnistage.config.env import child_environment
from omnistage.connectors.descriptors import open_lifeline, receive_descriptor
from omnistage.connectors.memory import create_memory
from omnistage.obs.log import logged_level
from omnistage.orchestrator.plan import Limits, OrchestratorConfig
from omnistage.runtime.launch import KILL_WAIT_S, WORKER_MODULE
from omnistage.runtime.plan import ProcessPlan
from omnistage.wire.stream import FrameStream

DRIVER_MODULE = "omnistage.runtime.engine_process"

logger = logging.getLogger(__name__)


START_S = 60.0
"""How long a driver has until its first word."""
SILENCE_S = 4.0
"""A driver beats every second; that one says nothing for so long is shown in the status."""
DOUBT_S = 6.0
"""It has this much longer, then it is killed."""


class DriverPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`channel` and `life_line` are inherited descriptors; `observed`: the server wants to hear of what flows."""

    config: OrchestratorConfig
    processes: tuple[ProcessPlan, ...]
    channel: int = -1
    life_line: int = -1
    record_events: str | None = None
    observed: bool = False
    worker_module: str = WORKER_MODULE
    zygote: bool = False
    log_level: str = "info"
    heartbeat_s: float = 1.0

    def of_start(self, number: int) -> DriverPlan:
        """For the first, second ... driver of a server: each records its events in a file of its own."""
        if self.record_events is None or number == 1:
            return self
        return msgspec.structs.replace(self, record_events=f"{self.record_events}.{number}")

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> DriverPlan:
        return msgspec.json.decode(data, type=cls)


class DeathsState:
    """When drivers have died, and whether another one is started: the limits of a replica hold for them too."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._recent: list[float] = []

    def __str__(self) -> str:
        return f"{len(self._recent)} deaths in {self._limits.strike_window_s:g} s"

    def pause_s(self, now: float) -> float | None:
        """One has died: how long until the next start; None if there is none."""
        self._recent = [*(at for at in self._recent if at > now - self._limits.strike_window_s), now]
        if len(self._recent) >= self._limits.strikes:
            return None
        return min(self._limits.restart_first_s * 2.0 ** (len(self._recent) - 1), self._limits.restart_most_s)


class WorkersState:
    """Workers by their pidfds, which it owns."""

    def __init__(self) -> None:
        self._pidfds: set[int] = set()

    def __len__(self) -> int:
        return len(self._pidfds)

    def add(self, pidfd: int) -> None:
        self.forget_ended(0.0)
        self._pidfds.add(pidfd)

    def take_over(self, other: WorkersState) -> None:
        self._pidfds |= other._pidfds
        other._pidfds = set()

    def forget_ended(self, timeout_s: float) -> None:
        """Waits until all have ended, at most `timeout_s`, and lets go of those that have."""
        until = time.monotonic() + timeout_s
        poll = select.poll()
        for pidfd in self._pidfds:
            poll.register(pidfd, select.POLLIN)
        while self._pidfds and (ended := poll.poll(1000 * max(0.0, until - time.monotonic()))):
            for pidfd, _events in ended:
                poll.unregister(pidfd)
                os.close(pidfd)
                self._pidfds.remove(pidfd)

    def kill(self) -> None:
        for pidfd in self._pidfds:
            _kill(pidfd)

    def close(self) -> None:
        for pidfd in self._pidfds:
            os.close(pidfd)
        self._pidfds.clear()


@dataclass(slots=True)
class DriverState:
    """A running driver process and the workers that it has started. It should be heard of by `heard_by`, and at `kill_at` it is
    killed because of `overdue`; `why` is what ended it, if this side knows."""

    process: subprocess.Popen[bytes]
    pidfd: int
    stream: FrameStream
    life_line: socket.socket
    heard_by: float
    workers: WorkersState = field(default_factory=WorkersState)
    kill_at: float = math.inf
    overdue: str = ""
    heard: bool = False
    doubted: bool = False
    why: str = ""

    @property
    def deadline(self) -> float:
        return min(self.heard_by, self.kill_at)

    def speaks(self, now: float) -> None:
        """It was heard of."""
        self.heard, self.doubted, self.heard_by = True, False, now + SILENCE_S

    def judge(self, now: float) -> str:
        """A deadline has passed: why it is doubted (it may have been this side that stood still); "" where it is killed."""
        if self.heard and not self.doubted and now < self.kill_at:
            self.doubted, self.heard_by = True, now + DOUBT_S
            return f"has said nothing for {SILENCE_S:g} s"
        silent = f"said nothing for {SILENCE_S + DOUBT_S if self.heard else START_S:g} s and was killed"
        self.why = self.overdue if now >= self.kill_at else silent
        self.kill_at = self.heard_by = math.inf
        self.kill()
        return ""

    def kill_by(self, at: float, why: str) -> None:
        """Unless it has ended by then; the earliest reason stays."""
        if at < self.kill_at:
            self.kill_at, self.overdue = at, why

    def kill(self) -> None:
        """At once, and surely this process: a pidfd is never reused."""
        _kill(self.pidfd)

    def wait(self) -> int:
        """Reaps it; for one that is dead or has been killed. Negative for a signal."""
        try:
            return self.process.wait(KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            logger.error("the driver process %d was killed and does not end", self.process.pid)
            return -signal.SIGKILL

    def adopt(self) -> bool:
        """Takes in the workers that have come; False if no more can come."""
        try:
            while received := receive_descriptor(self.life_line):
                if received[1] is not None:
                    self.workers.add(received[1])
        except BlockingIOError:
            return True
        except ConnectionError:  # it died with something unread
            return False
        return False

    def close(self) -> None:
        """All but the workers' pidfds."""
        os.close(self.pidfd)
        self.stream.close()
        self.life_line.close()


def _kill(pidfd: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def launch_driver(plan: DriverPlan, now: float, *, module: str = DRIVER_MODULE) -> DriverState:
    """Raises OSError if it cannot be started."""
    ours, theirs = socket.socketpair()
    line, their_line = open_lifeline()
    line.setblocking(False)
    try:
        inherited = theirs.fileno(), their_line.fileno()
        told = msgspec.structs.replace(plan, channel=inherited[0], life_line=inherited[1], log_level=logged_level())
        child = _spawn(module, told, inherited)
        try:
            pidfd = os.pidfd_open(child.pid)
        except OSError:
            child.kill()
            child.wait(KILL_WAIT_S)
            raise
    except OSError:
        ours.close()
        line.close()
        raise
    finally:
        theirs.close()
        their_line.close()
    return DriverState(child, pidfd, FrameStream(ours), line, now + START_S)


def _spawn(module: str, plan: DriverPlan, inherited: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """What it writes goes where this process's errors go: it must never wait for this process to read."""
    encoded = plan.encode()
    told, errors = create_memory(len(encoded), "a driver's plan"), _errors()
    try:
        os.write(told, encoded)
        os.lseek(told, 0, os.SEEK_SET)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=told,
            stdout=errors,
            stderr=errors,
            pass_fds=inherited,
            env=_environment(),
            start_new_session=True,  # Ctrl+C in a terminal is the server's affair
        )
    finally:
        os.close(told)
        os.close(errors)


def _errors() -> int:
    try:
        return os.dup(2)
    except OSError:  # a program without standard error
        return os.open(os.devnull, os.O_WRONLY)


def _environment() -> dict[str, str]:
    """This process's module path, and no threads for arithmetic that a driver has none of; workers get their own."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return child_environment({"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
