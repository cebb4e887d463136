"""How other threads speak to a runtime's thread: a bounded queue of calls, with a descriptor that is readable while one waits.

Calls are run in order, in the runtime's thread only. Knows nothing of what they do.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

CAPACITY = 65536
"""Calls that may wait. Only calls that open something are refused at this bound; the others are bounded by what is open."""

Call = Callable[[], None]


class Inbox:
    """`put` from any thread; `take` and `close` from the runtime's."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._calls: deque[Call] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False

    def fileno(self) -> int:
        """Readable while calls wait."""
        return self._wake

    def put(self, call: Call, *, refusable: bool = False) -> bool:
        """False if the inbox is closed, or full and the call `refusable`; the call is not run then."""
        with self._lock:
            if self._closed or (refusable and len(self._calls) >= self._capacity):
                return False
            self._calls.append(call)
            if len(self._calls) == 1:
                os.eventfd_write(self._wake, 1)
        return True

    @property
    def closed(self) -> bool:
        return self._closed

    def take(self) -> list[Call]:
        """All calls that wait, oldest first."""
        with self._lock:
            calls = list(self._calls)
            self._calls.clear()
            if calls:
                os.eventfd_read(self._wake)
        return calls

    def close(self) -> list[Call]:
        """Ends the inbox and returns what nobody has taken. Idempotent."""
        with self._lock:
            calls = list(self._calls)
            self._calls.clear()
            if not self._closed:
                self._closed = True
                os.close(self._wake)
        return calls
