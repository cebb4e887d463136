"""The connector between processes of one host: one copy into a pre-allocated arena, read-only views out of it.

An arena is shared memory (connectors.memory) made and kept by the supervisor, so nothing has a name and nothing is left behind.
Its owner maps it writable, then seals it against any later writer; everybody else maps it read-only from a descriptor
(connectors.descriptors). Blocks come from a buddy allocator, and behind them every edge has one block, as large as a payload
may be, for its oldest request. What is larger, and what else the oldest request has when both are taken, gets a segment of its
own (connectors.segments). A reference carries its block's generation, so releasing twice or too late cannot free somebody
else's block. Sizes in bytes.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
from collections import Counter
from collections.abc import Sequence

from omnistage.config.stage import LARGEST_SHARE, EdgeId
from omnistage.connectors.base import ALIGNMENT_NBYTES, INLINE_NBYTES, inline_ref, lay_out, read, write
from omnistage.connectors.buddy import BuddyCache
from omnistage.connectors.memory import seal
from omnistage.connectors.segments import SEGMENT, Publish, SegmentCache, segment_of
from omnistage.core.errors import ConnectorError, PayloadTooLargeError
from omnistage.core.payload import MultimodalPayload, PayloadRef, TensorPlace

_POISON = b"\xff"


class ShmConnector:
    """`owner` and `epoch` name this replica; `arena` is its own arena's descriptor (mapped and sealed here, not closed),
    None for a process that only reads; `edges` are those that leave this replica. `oversize_nbytes` is the budget of segments,
    which `publish` hands up; without it there are none. `poison` fills what is released with 0xFF so that a late reader shows
    in tests."""

    name = "shm"

    def __init__(
        self,
        owner: str,
        epoch: int,
        arena: int | None = None,
        *,
        edges: Sequence[EdgeId] = (),
        oversize_nbytes: int = 0,
        publish: Publish | None = None,
        poison: bool = False,
    ) -> None:
        self._owner = owner
        self._epoch = epoch
        self._poison = poison
        self._lock = threading.Lock()
        self._keys = itertools.count()
        self._counts: Counter[str] = Counter()
        self._generations: Counter[int] = Counter()
        self._live: dict[int, tuple[int, int]] = {}  # offset: generation, nbytes
        self._attached: dict[tuple[str, int], mmap.mmap] = {}
        self._arena: mmap.mmap | None = None
        self._blocks = BuddyCache(0, INLINE_NBYTES)
        self._own_nbytes = 0
        self._own_offsets: dict[EdgeId, int] = {}
        self._own_taken: set[int] = set()
        self._segments = SegmentCache(owner, epoch, capacity_nbytes=oversize_nbytes, publish=publish, poison=poison)
        if arena is not None:
            self._open(arena, edges)

    def _open(self, arena: int, edges: Sequence[EdgeId]) -> None:
        self._arena = mmap.mmap(arena, os.fstat(arena).st_size)
        seal(arena)
        own = len(self._arena) // (LARGEST_SHARE + len(edges))
        self._own_nbytes = own - own % ALIGNMENT_NBYTES
        self._blocks = BuddyCache(len(self._arena) - len(edges) * self._own_nbytes, INLINE_NBYTES)
        self._own_offsets = {edge: self._blocks.capacity + index * self._own_nbytes for index, edge in enumerate(edges)}
        self._attached[self._owner, self._epoch] = self._arena

    @property
    def largest_nbytes(self) -> int:
        """The largest payload that the arena takes."""
        quarter = self._blocks.capacity // LARGEST_SHARE
        own = self._own_nbytes if self._own_offsets else quarter
        return max(INLINE_NBYTES, min(quarter, own, self._blocks.largest_nbytes))

    def try_put(self, payload: MultimodalPayload, *, oldest_of: EdgeId | None = None) -> PayloadRef | None:
        places, nbytes = lay_out(payload)
        key = next(self._keys)
        inline = inline_ref(payload, places, nbytes, connector=self.name, owner=self._owner, epoch=self._epoch, key=key)
        if inline is not None:
            self._count("inline_puts")
            return inline
        fits = self._arena is not None and nbytes <= self.largest_nbytes
        if not fits and nbytes > self._segments.capacity_nbytes:
            raise PayloadTooLargeError(
                f"a payload of {nbytes} bytes is too large; accepted: at most {self.largest_nbytes} bytes in the arena, or"
                f" {self._segments.capacity_nbytes} bytes in memory of its own (arena_oversize_nbytes)"
            )
        location = self._put_block(payload, places, nbytes, oldest_of) if fits else None
        if location is None and (oldest_of is not None or not fits):
            location = self._put_segment(key, payload, places, nbytes, None if fits else oldest_of)
        if location is None:
            self._count("refused_puts")
            return None
        where, generation = location
        metadata = dict(payload.metadata)
        return PayloadRef(self.name, self._owner, self._epoch, key, places, metadata, nbytes, None, where, generation)

    def can_read(self, ref: PayloadRef) -> bool:
        """False while the descriptor of the ref's arena or segment has not been attached yet."""
        if segment_of(ref) is not None:
            return self._segments.has(ref)
        return ref.inline is not None or (ref.owner, ref.epoch) in self._attached

    def get(self, ref: PayloadRef) -> MultimodalPayload:
        if ref.inline is not None:
            return read(ref, memoryview(ref.inline))
        if segment_of(ref) is not None:
            return read(ref, self._segments.view(ref))
        arena = self._attached.get((ref.owner, ref.epoch))
        if arena is None:
            raise ConnectorError(f"the arena of {ref.owner} (epoch {ref.epoch}) is not attached")
        offset = _offset_of(ref)
        if offset < 0 or ref.nbytes < 0 or offset + ref.nbytes > len(arena):
            raise ConnectorError(
                f"a payload at {ref.location!r} of {ref.nbytes} bytes lies outside its arena of {len(arena)} bytes"
            )
        if self._is_mine(ref) and self._live.get(offset, (None, 0))[0] != ref.generation:
            raise ConnectorError(f"payload {ref.key} has been released")
        return read(ref, memoryview(arena)[offset : offset + ref.nbytes])

    def release(self, ref: PayloadRef) -> None:
        if ref.inline is not None:
            return
        if not self._is_mine(ref) or not self._free(ref):
            self._count("stale_releases")

    def attach(self, owner: str, epoch: int, descriptor: int, key: int | None = None) -> None:
        """Maps another replica's arena, or its segment `key`, read-only; the descriptor may be closed afterwards."""
        if key is not None:
            self._segments.attach(owner, epoch, key, descriptor)
            return
        arena = mmap.mmap(descriptor, os.fstat(descriptor).st_size, prot=mmap.PROT_READ)
        with self._lock:
            self._attached[owner, epoch] = arena

    def detach(self, owner: str, epoch: int, key: int | None = None) -> None:
        """Forgets an arena or a segment; its memory goes when the last view of it does."""
        if key is not None:
            self._segments.detach(owner, epoch, key)
            return
        with self._lock:
            self._attached.pop((owner, epoch), None)

    def health(self) -> dict[str, float]:
        with self._lock:
            used = self._blocks.used_nbytes + len(self._own_taken) * self._own_nbytes
            capacity = self._blocks.capacity + len(self._own_offsets) * self._own_nbytes
            names = ("inline_puts", "arena_puts", "segment_puts", "refused_puts", "stale_releases")
            return {
                "used_nbytes": used + self._segments.used_nbytes,
                "capacity_nbytes": capacity + self._segments.capacity_nbytes,
                "segments": len(self._segments),
                "attached": len(self._attached),
                **{name: self._counts[name] for name in names},
            }

    def close(self) -> None:
        self._segments.close()
        with self._lock:
            self._attached.clear()
            self._arena = None
            self._blocks = BuddyCache(0, INLINE_NBYTES)
            self._live.clear()
            self._own_offsets.clear()
            self._own_taken.clear()

    def _is_mine(self, ref: PayloadRef) -> bool:
        return (ref.owner, ref.epoch) == (self._owner, self._epoch)

    def _put_block(
        self, payload: MultimodalPayload, places: tuple[TensorPlace, ...], nbytes: int, oldest_of: EdgeId | None
    ) -> tuple[str, int] | None:
        """Location and generation of the payload in the arena, None if it is full."""
        with self._lock:
            arena, offset = self._arena, self._take(nbytes, oldest_of)
            if arena is None or offset is None:
                return None
            self._generations[offset] += 1
            generation = self._generations[offset]
            self._live[offset] = generation, nbytes
            self._counts["arena_puts"] += 1
        try:
            write(payload, places, memoryview(arena)[offset : offset + nbytes])
        except BaseException:
            with self._lock:
                self._give_back(offset)
            raise
        return str(offset), generation

    def _put_segment(
        self,
        key: int,
        payload: MultimodalPayload,
        places: tuple[TensorPlace, ...],
        nbytes: int,
        oldest_of: EdgeId | None,
    ) -> tuple[str, int] | None:
        if not self._segments.put(key, payload, places, nbytes, oldest_of):
            return None
        self._count("segment_puts")
        return SEGMENT, 0

    def _free(self, ref: PayloadRef) -> bool:
        """False for a block that is another payload's by now, or nobody's."""
        key = segment_of(ref)
        if key is not None:
            return self._segments.release(key)
        with self._lock:
            offset = _offset_of(ref)
            generation, nbytes = self._live.get(offset, (None, 0))
            if generation != ref.generation:
                return False
            if self._poison and self._arena is not None:
                self._arena[offset : offset + nbytes] = _POISON * nbytes
            self._give_back(offset)
            return True

    def _take(self, nbytes: int, oldest_of: EdgeId | None) -> int | None:
        offset = self._blocks.take(nbytes)
        own = None if oldest_of is None else self._own_offsets.get(oldest_of)
        if offset is not None or own is None or own in self._own_taken:
            return offset
        self._own_taken.add(own)
        return own

    def _give_back(self, offset: int) -> None:
        if self._live.pop(offset, None) is None:
            return  # closed meanwhile
        if offset in self._own_taken:
            self._own_taken.remove(offset)
        else:
            self._blocks.give_back(offset)

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1


def _offset_of(ref: PayloadRef) -> int:
    """Where in its arena; -1 for what is no offset at all."""
    is_number = ref.location.isascii() and ref.location.isdecimal() and len(ref.location) < 20
    return int(ref.location) if is_number else -1
