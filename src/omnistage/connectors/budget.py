"""How many bytes payloads may take together, and the one payload per edge that may go beyond it.

Pure bookkeeping, no memory. The oldest request of an edge is the one that can always go on, so it is never refused for want of
room: one payload of it, for each edge, goes beyond the capacity. Not thread-safe: its owner holds a lock. Sizes in bytes.
"""

from __future__ import annotations

from omnistage.config.stage import EdgeId


class BudgetState:
    """What is held, by key. `max_count` bounds their number, for those that cost more than bytes."""

    def __init__(self, capacity_nbytes: int, *, max_count: int | None = None) -> None:
        self.capacity_nbytes = capacity_nbytes
        self.used_nbytes = 0
        self._max_count = max_count
        self._held: dict[int, int] = {}
        self._beyond: dict[EdgeId, int] = {}

    def take(self, key: int, nbytes: int, oldest_of: EdgeId | None) -> bool:
        """False if there is no room now; `oldest_of` as in OmniConnector.try_put."""
        is_full = self.used_nbytes + nbytes > self.capacity_nbytes or len(self._held) == self._max_count
        if is_full and (oldest_of is None or self._beyond.get(oldest_of) in self._held):
            return False
        if is_full and oldest_of is not None:
            self._beyond[oldest_of] = key
        self._held[key] = nbytes
        self.used_nbytes += nbytes
        return True

    def give_back(self, key: int) -> None:
        """Nothing happens for what is not held, as after `clear`."""
        self.used_nbytes -= self._held.pop(key, 0)

    def clear(self) -> None:
        self._held.clear()
        self._beyond.clear()
        self.used_nbytes = 0

    def __len__(self) -> int:
        return len(self._held)
