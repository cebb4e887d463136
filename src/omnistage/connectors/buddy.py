"""A buddy allocator over a range of bytes: size classes are powers of two, neighbours merge again when both are free.

Pure bookkeeping, no memory; offsets and sizes in bytes. Not thread-safe: its owner holds a lock.
"""

from __future__ import annotations


class BuddyCache:
    """Blocks of `smallest` x 2**k bytes out of `capacity` (rounded down to a multiple of `smallest`).

    A capacity that is no power of two is covered by several trees of falling size, so none of it is lost.
    """

    def __init__(self, capacity: int, smallest: int) -> None:
        self.smallest = smallest
        self.capacity = capacity - capacity % smallest
        self.used_nbytes = 0
        self._free: dict[int, set[int]] = {}
        self._taken: dict[int, int] = {}
        self._tree: dict[int, tuple[int, int]] = {}
        self._largest = 0
        self._plant_trees()

    def _plant_trees(self) -> None:
        start, left = 0, self.capacity
        while left:
            size = self.smallest << ((left // self.smallest).bit_length() - 1)
            self._free.setdefault(size, set()).add(start)
            self._tree[start] = (start, size)
            self._largest = max(self._largest, size)
            start, left = start + size, left - size

    @property
    def largest_nbytes(self) -> int:
        """The largest block that an empty cache can give."""
        return self._largest

    def take(self, nbytes: int) -> int | None:
        """The offset of a block of at least `nbytes`, or None if there is no room now."""
        size = self.smallest << max(0, (-(-nbytes // self.smallest) - 1).bit_length())
        fitting = size
        while not self._free.get(fitting):
            fitting *= 2
            if fitting > self._largest:
                return None
        offset = min(self._free[fitting])
        self._free[fitting].remove(offset)
        while fitting > size:
            fitting //= 2
            self._free.setdefault(fitting, set()).add(offset + fitting)
        self._taken[offset] = size
        self.used_nbytes += size
        return offset

    def give_back(self, offset: int) -> int:
        """Frees the block at `offset` and returns its size. KeyError for an offset that is not taken."""
        size = freed = self._taken.pop(offset)
        self.used_nbytes -= size
        base, whole = self._tree_of(offset)
        while size < whole:
            buddy = base + ((offset - base) ^ size)
            if buddy not in self._free.get(size, ()):
                break
            self._free[size].remove(buddy)
            offset, size = min(offset, buddy), size * 2
        self._free.setdefault(size, set()).add(offset)
        return freed

    def _tree_of(self, offset: int) -> tuple[int, int]:
        return next(tree for tree in self._tree.values() if tree[0] <= offset < tree[0] + tree[1])
