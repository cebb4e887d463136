"""What the machine is still to hear, in lanes that take turns: one of each replica, one of the callers, one of the clock.

Within a lane first comes first. A round takes one event of every replica and a few of the callers, and between two rounds whoever
runs them looks at what has come meanwhile: so what a stage has said for the next one does not wait until 64 callers have been
heard, nor until all has been heard of another replica that says much at once. Reports are cut up for it (`slices`). Nothing is
starved: every lane moves in every round. Knows nothing of what events do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from omnistage.wire.messages import (
    ControlDone,
    Event,
    ReplicaDown,
    ReplicaState,
    ReplicaUp,
    Reported,
    Tick,
    WorkerEvent,
)

SLICE = 8
"""Events of callers in a round, and items of a report after which the next request's are heard in another round."""


@dataclass(slots=True)
class AgendaState:
    """Its length counts what waits."""

    _replicas: dict[tuple[str, int], deque[Event]] = field(default_factory=dict)
    _ticks: deque[Event] = field(default_factory=deque)
    _callers: deque[Event] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._ticks) + len(self._callers) + sum(map(len, self._replicas.values()))

    def put(self, event: Event) -> None:
        match event:
            case Reported() | ReplicaUp() | ReplicaState() | ReplicaDown():
                self._replicas.setdefault((event.process, event.replica), deque()).append(event)
            case Tick():
                self._ticks.append(event)
            case _:
                self._callers.append(event)

    def round(self) -> list[Event]:
        """Takes what is to be heard before the next look at what has come."""
        events = [lane.popleft() for lane in self._replicas.values() if lane]
        events += self._ticks
        self._ticks.clear()
        events += (self._callers.popleft() for _ in range(min(SLICE, len(self._callers))))
        return events


def slices(items: tuple[WorkerEvent, ...]) -> Iterator[tuple[WorkerEvent, ...]]:
    """A report in pieces of about SLICE items, in order. What it says of one request in a row stays together."""
    begin = 0
    for end in range(SLICE, len(items)):
        if end - begin >= SLICE and _subject(items[end]) != _subject(items[end - 1]):
            yield items[begin:end]
            begin = end
    yield items[begin:]


def _subject(item: WorkerEvent) -> str:
    return item.call_id if isinstance(item, ControlDone) else item.request_id
