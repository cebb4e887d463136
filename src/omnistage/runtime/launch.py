"""Starts one worker process, by exec or by whoever forks it, and gives back the ends by which it is held.

Never `multiprocessing`: a worker does not import the caller's script, so a script needs no main guard. The worker gets its plan
on standard input, leads a session of its own (Ctrl+C in a terminal is the server's affair), and finds modules where this
process finds them. Knows nothing of stages' code or of what a worker does.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from omnistage.config.env import child_environment
from omnistage.connectors.descriptors import open_lifeline
from omnistage.connectors.memory import create_memory
from omnistage.core.errors import ConnectorError
from omnistage.obs.log import logged_level
from omnistage.runtime.plan import ProcessPlan
from omnistage.wire.plan import TcpPlan, WorkerPlan

logger = logging.getLogger(__name__)

WORKER_MODULE = "omnistage.stages.worker"
KILL_WAIT_S = 5.0


class Child(Protocol):
    """A process that was started here, however it was."""

    @property
    def pid(self) -> int: ...

    def bury(self) -> int | None:
        """Of one that is dead or has been killed: ends what it started itself, and sees it reaped. The exit code, negative
        for a signal; None if nobody saw it. Bounded: one that the kernel does not let go of is given up."""


Starter = Callable[[WorkerPlan, int], tuple[Child, int]]
"""`start(plan, output)`: a process with that plan that writes to that descriptor, and its pidfd. The numbers of descriptors in
the plan are this process's. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Launched:
    """`pidfd` becomes readable at its death; `output` is the read end of its stdout and stderr; `life_line` the server's end."""

    child: Child
    pidfd: int
    output: int
    life_line: socket.socket

    @property
    def pid(self) -> int:
        return self.child.pid

    def kill(self) -> None:
        """At once, and surely this process: a pidfd is never reused."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return

    def close(self) -> None:
        os.close(self.pidfd)
        os.close(self.output)
        self.life_line.close()


@dataclass(frozen=True, slots=True)
class ExecutedChild:
    """A child of this process."""

    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def bury(self) -> int | None:
        with suppress(ProcessLookupError):  # until it is reaped its number, which names its group too, is nobody else's
            os.killpg(self.pid, signal.SIGKILL)
        try:
            return self.process.wait(KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            logger.error("process %d was killed and does not end", self.pid)
            return -signal.SIGKILL


def launch_worker(
    process: ProcessPlan,
    replica: int,
    epoch: int,
    *,
    address: str,
    identity: str,
    arena: int,
    token: str = "",
    start: Starter,
) -> Launched:
    """Starts replica `replica` of `process`; `token` is what it shows to those whose payloads it reads by tcp. Raises OSError
    if it cannot be started."""
    ours, theirs = open_lifeline()
    ours.setblocking(False)
    output, child_output = os.pipe()
    plan = WorkerPlan(
        process=process.name,
        replica=replica,
        epoch=epoch,
        stages=process.stages,
        address=address,
        identity=identity,
        life_line=theirs.fileno(),
        arena=arena,
        arena_oversize_nbytes=process.arena_oversize_nbytes,
        tcp=_tcp_plan(process, token),
    )
    try:
        child, pidfd = start(plan, child_output)
    except OSError:
        ours.close()
        os.close(output)
        raise
    finally:
        theirs.close()
        os.close(child_output)
    os.set_blocking(output, False)
    return Launched(child, pidfd, output, ours)


def executor(process: ProcessPlan, module: str = WORKER_MODULE) -> Starter:
    """Starts workers of `process` by exec."""

    def start(plan: WorkerPlan, output: int) -> tuple[Child, int]:
        inherited = [plan.life_line] if plan.arena is None else [plan.life_line, plan.arena]
        child = spawn(module, plan.encode(), worker_environment(process), output, inherited)
        return ExecutedChild(child), _watched(child)

    return start


def _tcp_plan(process: ProcessPlan, token: str) -> TcpPlan | None:
    if process.tcp_nbytes is None:
        return None
    return TcpPlan(host=process.host, token=token, capacity_nbytes=process.tcp_nbytes)


def worker_environment(process: ProcessPlan) -> dict[str, str]:
    """Threads as configured, arenas of malloc that are kept rather than given back and faulted in again (fresh pages for
    large temporaries cost more than the arithmetic on them), no library that tells others of its use or keeps a file of it in the
    temporary folder, this process's module path and log level; the stages' own `env` wins. numpy's pool stays at one thread: no
    stage computes with it, and it would start with the import, which a zygote makes before it forks."""
    threads = str(process.threads)
    return child_environment(
        {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "ORT_DISABLE_TELEMETRY": "1",
            "MALLOC_MMAP_THRESHOLD_": str(2**30),
            "MALLOC_TRIM_THRESHOLD_": str(2**31),
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            **process.environment,
        },
        level=logged_level(),
    )


def _watched(child: subprocess.Popen[bytes]) -> int:
    """Its pidfd. A child that cannot be watched is not kept."""
    try:
        return os.pidfd_open(child.pid)
    except OSError:
        child.kill()
        child.wait(KILL_WAIT_S)
        raise


def spawn(
    module: str, plan: bytes, environment: dict[str, str], output: int, inherited: Sequence[int]
) -> subprocess.Popen[bytes]:
    """`python -m module` in a session of its own, with `plan` on standard input. Raises OSError."""
    told = plan_memory(plan)
    try:
        # -P: the working directory is not searched for modules unless this process searches it too.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=told,
            stdout=output,
            stderr=output,
            pass_fds=inherited,
            env=environment,
            start_new_session=True,
        )
    finally:
        os.close(told)


def plan_memory(plan: bytes) -> int:
    """A descriptor from which `plan` can be read to its end. Raises OSError where there is no memory for it."""
    try:
        told = create_memory(len(plan), "a plan")
    except ConnectorError as error:
        raise OSError(errno.ENOSPC, error.message) from None
    os.write(told, plan)
    os.lseek(told, 0, os.SEEK_SET)
    return told
