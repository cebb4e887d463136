"""Deadlines by name: set, cleared, and popped when due. Knows no clock; times are seconds that come in with events."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

SPARE_ENTRIES = 64
"""Stale heap entries that are kept before the heap is rebuilt."""


@dataclass(frozen=True, slots=True)
class RequestDeadline:
    """The whole request is to end by then."""

    request_id: str


@dataclass(frozen=True, slots=True)
class StallDeadline:
    """The caller is to take something by then."""

    request_id: str


@dataclass(frozen=True, slots=True)
class CancelDeadline:
    """CancelDone is due from this replica."""

    process: str
    replica: int
    request_id: str
    attempt: int
    stage_id: int


@dataclass(frozen=True, slots=True)
class RestartTime:
    """The back-off of a dead replica ends."""

    process: str
    replica: int


@dataclass(frozen=True, slots=True)
class CallDeadline:
    """A control call is answered with what there is."""

    call_id: str


@dataclass(frozen=True, slots=True)
class DrainDeadline:
    """What is still open at a shutdown is aborted."""


Timer = RequestDeadline | StallDeadline | CancelDeadline | RestartTime | CallDeadline | DrainDeadline


class TimerState:
    """A heap with stale entries: an entry counts only while it is the latest of its timer."""

    def __init__(self) -> None:
        self._live: dict[Timer, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, timer: Timer) -> bool:
        return timer in self._live

    def set(self, timer: Timer, time: float) -> None:
        """A timer that is already set is moved."""
        self._count += 1
        self._live[timer] = (time, self._count)
        heapq.heappush(self._heap, (time, self._count, timer))
        if len(self._heap) > 2 * len(self._live) + SPARE_ENTRIES:
            self._heap = [(time, count, timer) for timer, (time, count) in self._live.items()]
            heapq.heapify(self._heap)

    def clear(self, timer: Timer) -> None:
        self._live.pop(timer, None)

    def earliest(self) -> float | None:
        self._forget_stale()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> Timer | None:
        """The earliest timer that is due, once."""
        self._forget_stale()
        if not self._heap or self._heap[0][0] > now:
            return None
        _, _, timer = heapq.heappop(self._heap)
        del self._live[timer]
        return timer

    def _forget_stale(self) -> None:
        while self._heap:
            time, count, timer = self._heap[0]
            if self._live.get(timer) == (time, count):
                return
            heapq.heappop(self._heap)
