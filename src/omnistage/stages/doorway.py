"""Where mail comes into a worker, and who waits there: a step thread that has nothing else to do, else the main thread.

    all step threads busy     main thread:  gate is readable  ->  read
    a step thread is idle     that thread:  sleeps at the door itself; the gate is shut, and the main thread hears nothing

So an item reaches an engine that waits for it with one wake-up of a thread, not two, and while an engine steps there is still
somebody who reads its cancels. One thread sleeps here at a time; others that are idle sleep elsewhere. Knows nothing of mail.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable


class Doorway:
    """`descriptor` is readable while mail waits, and `read` takes it in; it may be called for nothing. All calls may come from any
    thread."""

    def __init__(self, descriptor: int, read: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._read = read
        self._gate = select.epoll()
        self._gate.register(descriptor, select.EPOLLIN)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._both = select.poll()
        self._both.register(descriptor, select.POLLIN)
        self._both.register(self._bell, select.POLLIN)
        self._place = threading.Lock()
        self._ringing = threading.Lock()
        self._sleeper: object | None = None
        self._closed = False

    def fileno(self) -> int:
        """Readable while mail waits and nobody sleeps here."""
        return self._gate.fileno()

    def sleep(self, sleeper: object, is_needed: Callable[[], bool], timeout_s: float) -> bool:
        """Until mail has come, which is read then, `sleeper` is rung for, or the time is over. `is_needed` is asked once more, when
        nobody can miss the sleeper any longer. False at once if somebody else sleeps here."""
        if not self._place.acquire(blocking=False):
            return False
        try:
            if self._closed:
                return False
            self._gate.modify(self._descriptor, 0)
            self._sleeper = sleeper
            woken = [] if is_needed() else self._both.poll(1000 * timeout_s)
            self._sleeper = None
            for descriptor, _ in woken:
                if descriptor == self._bell:
                    os.eventfd_read(self._bell)
                else:
                    self._read()
            self._gate.modify(self._descriptor, select.EPOLLIN)
        finally:
            self._place.release()
        return True

    def ring(self, sleeper: object) -> None:
        """Wakes `sleeper` if it sleeps here."""
        if self._sleeper is not sleeper:
            return
        with self._ringing:  # whoever rings may outlive the door
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Nobody sleeps here any more."""
        self._closed = True
        self.ring(self._sleeper)
        with self._place, self._ringing:
            os.close(self._bell)
            self._bell = -1
            self._gate.close()
