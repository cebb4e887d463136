"""Standard error of processes that serve: who writes to it never waits for who reads it.

A pipe that nobody empties stands still, and so does a terminal at the press of a key. A thread writes what was said, in order. Up
to HELD_CHARS wait for it; what comes beyond is lost, and how many lines that were is said once there is room.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

HELD_CHARS = 2**20
DRAIN_S = 1.0


class UnwaitedStream(io.TextIOBase):
    """Text for `descriptor`, which stays somebody else's."""

    encoding, errors = "utf-8", "backslashreplace"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._changed = threading.Condition()  # its lock may be taken again, by a signal's handler
        self._held: deque[str] = deque()
        self._held_chars = 0
        self._lost_lines = 0
        # From the beginning, so that a process has as many threads after its first line as before.
        threading.Thread(target=self._write_on, name="omnistage-stderr", daemon=True).start()

    def write(self, text: str) -> int:
        """Takes it over, or loses it. Never blocks. Raises TypeError for what is no text: that is how libraries tell the two kinds
        of streams apart."""
        if not isinstance(text, str):
            raise TypeError(f"standard error takes text, not {type(text).__name__}")
        with self._changed:
            if self._held_chars + len(text) > HELD_CHARS:
                self._lost_lines += text.count("\n")
            else:
                self._hold(text)
        return len(text)

    def drain(self, timeout_s: float = DRAIN_S) -> bool:
        """Waits until all that was said is written; False if nobody reads it in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._held, timeout_s)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def _hold(self, text: str) -> None:
        self._held.append(text)
        self._held_chars += len(text)
        self._changed.notify_all()

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._held)
                count, text = len(self._held), "".join(self._held)
            with suppress(OSError):  # nobody reads it any more, which is no reason to stop
                self._put(text.encode(self.encoding, self.errors))
            with self._changed:
                for _ in range(count):
                    self._held_chars -= len(self._held.popleft())
                if self._lost_lines:
                    self._hold(f"omnistage: {self._lost_lines} lines are lost here: nobody read standard error\n")
                    self._lost_lines = 0
                self._changed.notify_all()

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:  # somebody else has made it so
                select.select([], [self._descriptor], [])


def never_wait_for_stderr() -> Callable[[], object]:
    """Puts an UnwaitedStream in the place of `sys.stderr`. The program's end waits for what is left, up to DRAIN_S; to be called
    where it ends without Python's end: what is returned waits as well. Where there is no standard error nothing is done."""
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # none, or one that is no file
        return lambda: None
    stream = UnwaitedStream(descriptor)
    sys.stderr = stream
    atexit.register(stream.drain)
    return stream.drain
