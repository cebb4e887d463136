"""One helper process as its worker holds it: started by exec, spoken to without waiting, killed rather than waited for.

To be used from the worker's main thread alone: the kernel ends a helper when the thread that started it ends. Knows frames, and
nothing of what they mean.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress

from omnistage.config.env import child_environment
from omnistage.stages.prepare.messages import FrameState

log = logging.getLogger(__name__)

HELPER_MODULE = "omnistage.stages.prepare.helper"
_CHUNK_NBYTES = 2**20
_KILL_WAIT_S = 5.0


class HelperProcess:
    """`line` becomes readable when it has spoken, `pidfd` when it has died; `is_silent`: nothing more will come. Raises OSError if
    it cannot be started."""

    def __init__(self, first: bytes, limit_nbytes: int) -> None:
        ours, theirs = socket.socketpair()
        descriptor = str(theirs.fileno())
        # -P: the working directory is not searched for modules unless this process searches it too.
        command = [sys.executable, "-P", "-m", HELPER_MODULE, descriptor, str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=_environment(),
            )
            self.pidfd = _watched(self._process)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self.line = ours
        self.is_silent = False
        self._frames = FrameState(limit_nbytes)
        self._out: deque[memoryview] = deque()
        self.send(first)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, data: bytes) -> None:
        """What the other side does not take at once goes when `flush` is called."""
        self._out.append(memoryview(data))
        self.flush()

    def flush(self) -> bool:
        """True if something is left to be sent."""
        try:
            while self._out:
                sent = self.line.send(self._out[0])
                self._out[0] = self._out[0][sent:]
                if not self._out[0]:
                    self._out.popleft()
        except BlockingIOError:
            return True
        except OSError:
            self._out.clear()  # it is dead, as its pidfd will say
        return False

    def receive(self) -> list[bytes]:
        """The messages that have come. A helper that has closed its end, or says what is no message, is killed."""
        complete: list[bytes] = []
        try:
            while data := self.line.recv(_CHUNK_NBYTES):
                complete += self._frames.feed(data)
        except BlockingIOError:
            return complete
        except (ConnectionError, ValueError) as error:
            log.error("helper process %d: %s; it is killed", self.pid, error)
        self.is_silent = True
        self.kill()
        return complete

    def kill(self) -> None:
        """At once, and surely this process: a pidfd is never reused."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> str:
        """Kills and reaps it, and closes what led to it; how it ended, in words."""
        self.kill()
        self.line.close()
        try:
            code = self._process.wait(_KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            log.error("helper process %d was killed and does not end", self.pid)
            code = -signal.SIGKILL
        os.close(self.pidfd)
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _environment() -> dict[str, str]:
    """The worker's, and its module path. A worker keeps what it has freed, for the next step's temporaries; a helper gives back
    what loading a tokenizer took. Its threads share two heaps: each reserves addresses, which are bounded (prepare.bounds)."""
    path = os.pathsep.join(place or os.getcwd() for place in sys.path)
    thresholds = {"MALLOC_MMAP_THRESHOLD_": str(2**17), "MALLOC_TRIM_THRESHOLD_": str(2**17), "MALLOC_ARENA_MAX": "2"}
    return child_environment({"PYTHONPATH": path, **thresholds})


def _watched(child: subprocess.Popen[bytes]) -> int:
    """Its pidfd. A child that cannot be watched is not kept."""
    try:
        return os.pidfd_open(child.pid)
    except OSError:
        child.kill()
        child.wait(_KILL_WAIT_S)
        raise
