"""What the machine is still to hear, in lanes that take turns: one of each replica, one of the callers, one of the clock.

Within a lane first comes first. A round takes one event of every replica and a few of the callers, and between two rounds whoever
runs them looks at what has come meanwhile: so what a stage has said for the next one does not wait until 64 callers have been
heard, nor until all has been heard of another replica that says much at once (in short reports: stages.reports). Nothing is
starved: every lane moves in every round. Knows nothing of what events do.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from omnistage.wire.messages import Event, ReplicaDown, ReplicaState, ReplicaUp, Reported, Tick

CALLERS = 8
"""Events of callers in a round."""


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
        events += (self._callers.popleft() for _ in range(min(CALLERS, len(self._callers))))
        return events
