"""A mapping of values that were used of late: the least recently used go first, bytes are bounded. Knows not what they are."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class RecentValues(Generic[Key, Value]):
    """See the module. A value of more than `limit_nbytes` is not kept."""

    def __init__(self, limit_nbytes: int) -> None:
        self._limit_nbytes = limit_nbytes
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: Key, value: Value, nbytes: int) -> None:
        self.nbytes -= self._values.pop(key, (None, 0))[1]
        self._values[key] = value, nbytes
        self.nbytes += nbytes
        while self.nbytes > self._limit_nbytes:
            self.nbytes -= self._values.popitem(last=False)[1][1]

    def clear(self) -> None:
        self._values.clear()
        self.nbytes = 0
