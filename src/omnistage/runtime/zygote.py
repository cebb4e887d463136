"""The server's side of the zygote: one process that has imported what most workers need, from which a restart forks its worker.

The first workers are started by exec, all at once, which no fork could better: their imports go on side by side. The zygote is
made when all that runs has been ready for a while, so that neither a start nor a short program pays for it. It serves the
environment (stages' `env`, threads) that most processes have; the others' workers are always started by exec.
It may die, or be killed, at any time: workers go on, starts go by exec, and the next worker that comes up has a new one made.
All of it lives in the driver's thread. Times are seconds of time.monotonic.
"""

from __future__ import annotations

import logging
import math
import os
import select
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from omnistage.connectors.descriptors import open_lifeline
from omnistage.runtime.launch import KILL_WAIT_S, Child, Starter, plan_memory, spawn, worker_environment
from omnistage.runtime.output import WorkerOutput
from omnistage.runtime.plan import ProcessPlan
from omnistage.wire.plan import WorkerPlan
from omnistage.wire.zygote import Ended, Forked, ForkOrder, ForkRefused, ZygotePlan, ZygoteReady, hear_zygote, say

logger = logging.getLogger(__name__)

ZYGOTE_MODULE = "omnistage.stages.zygote"
QUIET_S = 5.0
"""For how long everything must have been ready before a zygote is made."""
IMPORT_TIMEOUT_S = 300.0
ANSWER_WAIT_S = 2.0
"""A fork of 0.3 GB takes 10 ms on an idle machine; a zygote that does not answer by then is killed. The driver waits meanwhile."""


class ZygoteProcess:
    """One zygote, from its start to its end. `gone` once it has ended, or was ended because it did not answer; what it has
    said of its children by then is kept. Whoever watches `line` and `output` closes it after that."""

    def __init__(self, environment: dict[str, str], module: str, processes: Sequence[ProcessPlan]) -> None:
        ours, theirs = open_lifeline()
        ours.setblocking(False)
        output, child_output = os.pipe()
        stages = tuple(stage for process in processes for stage in process.stages)
        plan = ZygotePlan(control=theirs.fileno(), module=module, stages=stages)
        try:
            self._process = spawn(ZYGOTE_MODULE, plan.encode(), environment, child_output, [theirs.fileno()])
        except OSError:
            ours.close()
            os.close(output)
            raise
        finally:
            theirs.close()
            os.close(child_output)
        os.set_blocking(output, False)
        self.line: socket.socket = ours
        self.output = output
        self.said = WorkerOutput(output, "zygote")
        self.ready: ZygoteReady | None = None
        self.gone = False
        self._hung_up = False
        self._answer: Forked | ForkRefused | None = None
        self._pidfd = -1
        self._codes: dict[int, int] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, plan: WorkerPlan, output: int) -> tuple[Child, int]:
        """A `Starter`. A zygote that does not answer, or refuses, is ended: it would do so again."""
        told = plan_memory(plan.encode())
        descriptors = [told, output, plan.life_line, *([] if plan.arena is None else [plan.arena])]
        try:
            say(self.line, ForkOrder(), descriptors)
            self._listen_until(lambda: self._answer is not None)
        finally:
            os.close(told)
        answer, self._answer = self._answer, None
        if isinstance(answer, Forked):
            return ForkedChild(answer.pid, self._pidfd, self), self._pidfd
        self.end()
        raise ChildProcessError(answer.reason if answer is not None else "the zygote does not answer")

    def code_of(self, pid: int) -> int | None:
        """The exit code of a child that is dead or has been killed; None if the zygote did not live to see it."""
        self._listen_until(lambda: pid in self._codes)
        if pid not in self._codes:
            self.end()
        return self._codes.pop(pid, None)

    def pump(self) -> None:
        """Hears what it has said so far."""
        while not self.gone and self._hear():
            pass
        if self._hung_up:
            self.end()

    def end(self) -> None:
        """At once; idempotent."""
        if self.gone:
            return
        self._process.kill()
        try:
            self._process.wait(KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            logger.error("the zygote (process %d) was killed and does not end", self.pid)
        while self._hear():
            pass
        self.gone = True

    def close(self) -> None:
        """After `end`."""
        self.said.finish()
        self.line.close()
        os.close(self.output)

    def _listen_until(self, heard: Callable[[], bool]) -> None:
        """For at most `ANSWER_WAIT_S`, or as long as it lives."""
        give_up_at = time.monotonic() + ANSWER_WAIT_S
        while not (heard() or self.gone) and (left := give_up_at - time.monotonic()) > 0:
            select.select([self.line], [], [], left)
            self.pump()

    def _hear(self) -> bool:
        """Takes one message; False if there is none."""
        try:
            heard = hear_zygote(self.line)
        except BlockingIOError:
            return False
        except ConnectionError:
            heard = None
        if heard is None:
            self._hung_up = True
            return False
        message, descriptors = heard
        match message:
            case ZygoteReady():
                self.ready = message
            case Ended():
                self._codes[message.pid] = message.code
            case Forked():
                self._answer, self._pidfd = message, descriptors[0]
            case ForkRefused():
                self._answer = message
        return True


class ForkedChild:
    """A child of a zygote. `pidfd` belongs to whoever holds the child."""

    def __init__(self, pid: int, pidfd: int, zygote: ZygoteProcess) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._zygote = zygote
        self._is_buried = False
        self._code: int | None = None

    def bury(self) -> int | None:
        """Idempotent, as every Child's."""
        if not self._is_buried:
            self._is_buried = True
            self._code = self._zygote.code_of(self.pid)
            if self._code is None:
                self._bury_alone()
        return self._code

    def _bury_alone(self) -> None:
        """As the zygote would have. The system reaps orphans; from then on the number is the group's alone, or somebody else's."""
        if not select.select([self._pidfd], [], [], KILL_WAIT_S)[0]:
            logger.error("process %d was killed and does not end", self.pid)
            return
        is_reaped = _is_nobody(lambda: signal.pidfd_send_signal(self._pidfd, 0))
        if not is_reaped or _is_nobody(lambda: os.kill(self.pid, 0)):
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def _is_nobody(ask: Callable[[], None]) -> bool:
    try:
        ask()
    except ProcessLookupError:
        return True
    return False


class ZygoteState:
    """The zygote that there is, if any, and when the next one is made. Without `enabled` there is never one."""

    def __init__(
        self, processes: Sequence[ProcessPlan], selector: selectors.BaseSelector, module: str, *, enabled: bool
    ) -> None:
        self._selector = selector
        self._module = module
        self._environment = shared_environment(processes)
        self._processes = [process for process in processes if worker_environment(process) == self._environment]
        self._hopeless = not enabled
        self._current: ZygoteProcess | None = None
        self._due_at = math.inf
        self._imported_by = math.inf

    @property
    def pid(self) -> int | None:
        """Of a zygote that can fork."""
        current = self._current
        return None if current is None or current.gone or current.ready is None else current.pid

    @property
    def deadline(self) -> float:
        return min(self._due_at, self._imported_by)

    def saw(self, *, all_ready: bool) -> None:
        """A worker has been started, has become ready or has died; `all_ready`: all those that run."""
        wanted = all_ready and self._current is None and not self._hopeless
        self._due_at = time.monotonic() + QUIET_S if wanted else math.inf

    def turn(self, now: float) -> None:
        """Does what is due."""
        if now >= self._due_at:
            self._due_at = math.inf
            self._make(now)
        if now >= self._imported_by:
            logger.warning("the zygote has not imported everything within %g s; it is ended", IMPORT_TIMEOUT_S)
            self._give_up()

    def starter(self, process: ProcessPlan) -> Starter | None:
        """None where workers of `process` are to be started by exec now."""
        if self.pid is None or worker_environment(process) != self._environment:
            return None
        return self._fork

    def close(self) -> None:
        """No zygote is left, or will be made. After the last child was buried."""
        self._give_up()

    def _make(self, now: float) -> None:
        try:
            made = ZygoteProcess(self._environment, self._module, self._processes)
        except OSError as error:
            logger.warning("no zygote can be started: %s", error)
            return
        self._current, self._imported_by = made, now + IMPORT_TIMEOUT_S
        self._selector.register(made.line, selectors.EVENT_READ, self._listen)
        self._selector.register(made.output, selectors.EVENT_READ, self._pump_output)

    def _fork(self, plan: WorkerPlan, output: int) -> tuple[Child, int]:
        assert self._current is not None
        try:
            return self._current.fork(plan, output)
        finally:
            self._bury_if_gone()

    def _listen(self) -> None:
        assert self._current is not None
        self._current.pump()
        ready = self._current.ready
        if ready is not None:
            self._imported_by = math.inf
            if ready.threads > 1:
                logger.warning("workers cannot be forked: %d threads run after the imports", ready.threads)
                self._give_up()
        self._bury_if_gone()

    def _pump_output(self) -> None:
        if self._current is not None and not self._current.said.pump():
            self._selector.unregister(self._current.output)

    def _give_up(self) -> None:
        self._hopeless, self._due_at = True, math.inf
        if self._current is not None:
            self._current.end()
            self._bury_if_gone()

    def _bury_if_gone(self) -> None:
        gone = self._current
        if gone is None or not gone.gone:
            return
        self._current, self._imported_by = None, math.inf
        for watched in (gone.line.fileno(), gone.output):
            if watched in self._selector.get_map():
                self._selector.unregister(watched)
        gone.close()


def shared_environment(processes: Sequence[ProcessPlan]) -> dict[str, str]:
    """What most of the processes' workers have; that of the first of those which equally many have."""
    environments = [worker_environment(process) for process in processes]
    return max(environments, key=environments.count, default={})
