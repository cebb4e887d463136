"""What is on its way to the caller of one request: media have a window in bytes, text has none.

An item passes if it fits into what is left of the window, or if nothing is in flight (an item larger than the window would
never pass otherwise). Held items keep their order. Knows neither edges nor commands. Sizes in bytes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from omnistage.core.payload import PayloadRef
from omnistage.orchestrator.edges import Item


@dataclass(frozen=True, slots=True)
class OutboundItem:
    """An item of `source` on its way to the caller."""

    source: int
    item: Item
    windowed: bool

    @property
    def nbytes(self) -> int:
        """What it weighs in the window."""
        return self.item.ref.nbytes if self.windowed and self.item.ref is not None else 0


@dataclass(slots=True)
class ClientState:
    """`in_flight` was sent and not yet taken; `held` waits for room."""

    window_nbytes: int
    in_flight: dict[tuple[int, int], OutboundItem] = field(default_factory=dict)
    in_flight_nbytes: int = 0
    held: deque[OutboundItem] = field(default_factory=deque)

    def offer(self, item: OutboundItem) -> list[OutboundItem]:
        """Returns the items to send now."""
        if not item.windowed:
            return [self._send(item)]
        self.held.append(item)
        return self.pump()

    def pump(self) -> list[OutboundItem]:
        """Held items that pass now, in order."""
        passed = []
        while self.held and self._fits(self.held[0]):
            passed.append(self._send(self.held.popleft()))
        return passed

    def took(self, source: int, seq: int) -> OutboundItem | None:
        """The caller has taken an item; None if it is not in flight."""
        item = self.in_flight.pop((source, seq), None)
        if item is not None:
            self.in_flight_nbytes -= item.nbytes
        return item

    def refs(self) -> list[PayloadRef | None]:
        """What is not sent yet."""
        return [item.item.ref for item in self.held]

    def _fits(self, item: OutboundItem) -> bool:
        return self.in_flight_nbytes == 0 or self.in_flight_nbytes + item.nbytes <= self.window_nbytes

    def _send(self, item: OutboundItem) -> OutboundItem:
        if item.item.ref is not None:  # the bare end is nothing to take
            self.in_flight[item.source, item.item.seq] = item
            self.in_flight_nbytes += item.nbytes
        return item
