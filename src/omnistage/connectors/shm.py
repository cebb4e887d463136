"""The connector between processes of one host: one copy into a pre-allocated arena, read-only views out of it.

An arena is an anonymous memory file (memfd) made and kept by the supervisor, so nothing has a name and nothing is left behind.
Its owner maps it writable, then seals it against any later writer; everybody else maps it read-only from a descriptor
(connectors.descriptors). Blocks come from a buddy allocator, and behind them every edge has one block, as large as a payload
may be, for its oldest request. A reference carries its block's generation, so releasing twice or too late cannot free somebody
else's block. Sizes in bytes.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from omnistage.config.stage import LARGEST_SHARE, EdgeId
from omnistage.connectors.base import ALIGNMENT_NBYTES, INLINE_NBYTES, check_spec, inline_ref, lay_out, read, write
from omnistage.connectors.buddy import BuddyCache
from omnistage.core.errors import ConnectorError, PayloadTooLargeError
from omnistage.core.payload import MultimodalPayload, PayloadRef

_F_ADD_SEALS = 1033  # fcntl.F_ADD_SEALS exists only from Python 3.12 on for every build
_F_SEAL_SHRINK, _F_SEAL_GROW, _F_SEAL_FUTURE_WRITE = 0x2, 0x4, 0x10
_POISON = b"\xff"


def create_arena(nbytes: int) -> int:
    """A descriptor of `nbytes` of shared memory, every page of it allocated now rather than at a fault in mid-request.

    Raises ConnectorError where the machine cannot give that much. What is available is asked first, because a memory file
    has no limit of its own: allocating past it would end in the kernel killing some process, not in an error.
    """
    available = _available_nbytes()
    if nbytes > available:
        raise ConnectorError(
            f"an arena of {nbytes} bytes cannot be allocated: {available} bytes of memory are available"
        )
    descriptor = os.memfd_create("omnistage-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        os.close(descriptor)
        raise ConnectorError(f"an arena of {nbytes} bytes cannot be allocated: {error.strerror}") from None
    return descriptor


def _available_nbytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class ShmConnector:
    """`owner` and `epoch` name this replica; `arena` is its own arena's descriptor (mapped and sealed here, not closed),
    None for a process that only reads; `edges` are those that leave this replica. `poison` fills released blocks with 0xFF
    so that a late reader shows in tests."""

    name = "shm"

    def __init__(
        self,
        owner: str,
        epoch: int,
        arena: int | None = None,
        *,
        edges: Sequence[EdgeId] = (),
        poison: bool = False,
    ) -> None:
        self._owner = owner
        self._epoch = epoch
        self._poison = poison
        self._lock = threading.Lock()
        self._keys = itertools.count()
        self._counts: Counter[str] = Counter()
        self._generations: Counter[int] = Counter()
        self._attached: dict[tuple[str, int], mmap.mmap] = {}
        self._arena: mmap.mmap | None = None
        self._blocks = BuddyCache(0, INLINE_NBYTES)
        self._own_nbytes = 0
        self._own_offsets: dict[EdgeId, int] = {}
        self._own_taken: set[int] = set()
        if arena is not None:
            self._open(arena, edges)

    def _open(self, arena: int, edges: Sequence[EdgeId]) -> None:
        self._arena = mmap.mmap(arena, os.fstat(arena).st_size)
        fcntl.fcntl(arena, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_FUTURE_WRITE)
        own = len(self._arena) // (LARGEST_SHARE + len(edges))
        self._own_nbytes = own - own % ALIGNMENT_NBYTES
        self._blocks = BuddyCache(len(self._arena) - len(edges) * self._own_nbytes, INLINE_NBYTES)
        self._own_offsets = {edge: self._blocks.capacity + index * self._own_nbytes for index, edge in enumerate(edges)}
        self._attached[self._owner, self._epoch] = self._arena

    @property
    def largest_nbytes(self) -> int:
        """The largest payload that can ever be put."""
        quarter = self._blocks.capacity // LARGEST_SHARE
        own = self._own_nbytes if self._own_offsets else quarter
        return max(INLINE_NBYTES, min(quarter, own, self._blocks.largest_nbytes))

    def try_put(self, payload: MultimodalPayload, *, oldest_of: EdgeId | None = None) -> PayloadRef | None:
        check_spec(payload)
        inline = inline_ref(payload, connector=self.name, owner=self._owner, epoch=self._epoch, key=next(self._keys))
        if inline is not None:
            self._count("inline_puts")
            return inline
        places, nbytes = lay_out(payload)
        if self._arena is None or nbytes > self.largest_nbytes:
            limit = self.largest_nbytes
            raise PayloadTooLargeError(f"a payload of {nbytes} bytes exceeds the largest an arena takes, {limit} bytes")
        with self._lock:
            offset = self._take(nbytes, oldest_of)
            if offset is None:
                self._counts["refused_puts"] += 1
                return None
            self._generations[offset] += 1
            generation = self._generations[offset]
            self._counts["arena_puts"] += 1
        try:
            write(payload, places, memoryview(self._arena)[offset : offset + nbytes])
        except BaseException:
            with self._lock:
                self._give_back(offset)
            raise
        key, metadata = next(self._keys), dict(payload.metadata)
        return PayloadRef(
            self.name, self._owner, self._epoch, key, places, metadata, nbytes, None, str(offset), generation
        )

    def can_read(self, ref: PayloadRef) -> bool:
        """False while the descriptor of the ref's arena has not been attached yet."""
        return ref.inline is not None or (ref.owner, ref.epoch) in self._attached

    def get(self, ref: PayloadRef) -> MultimodalPayload:
        if ref.inline is not None:
            return read(ref, memoryview(ref.inline))
        arena = self._attached.get((ref.owner, ref.epoch))
        if arena is None:
            raise ConnectorError(f"the arena of {ref.owner} (epoch {ref.epoch}) is not attached")
        offset = int(ref.location)
        if offset < 0 or offset + ref.nbytes > len(arena):
            raise ConnectorError(
                f"a payload at {offset} of {ref.nbytes} bytes lies outside its arena of {len(arena)} bytes"
            )
        return read(ref, memoryview(arena)[offset : offset + ref.nbytes])

    def release(self, ref: PayloadRef) -> None:
        if ref.inline is not None:
            return
        with self._lock:
            offset = int(ref.location)
            mine = (ref.owner, ref.epoch) == (self._owner, self._epoch)
            if not mine or self._generations[offset] != ref.generation:
                self._counts["stale_releases"] += 1
                return
            self._generations[offset] += 1  # an odd step: the same ref released again is stale
            if self._poison and self._arena is not None:
                self._arena[offset : offset + ref.nbytes] = _POISON * ref.nbytes
            self._give_back(offset)

    def _take(self, nbytes: int, oldest_of: EdgeId | None) -> int | None:
        offset = self._blocks.take(nbytes)
        own = None if oldest_of is None else self._own_offsets.get(oldest_of)
        if offset is not None or own is None or own in self._own_taken:
            return offset
        self._own_taken.add(own)
        return own

    def _give_back(self, offset: int) -> None:
        if offset in self._own_taken:
            self._own_taken.remove(offset)
        else:
            self._blocks.give_back(offset)

    def attach(self, owner: str, epoch: int, descriptor: int) -> None:
        """Maps another replica's arena read-only; the descriptor may be closed afterwards."""
        arena = mmap.mmap(descriptor, os.fstat(descriptor).st_size, prot=mmap.PROT_READ)
        with self._lock:
            self._attached[owner, epoch] = arena

    def detach(self, owner: str, epoch: int) -> None:
        """Forgets an arena; its memory goes when the last view of it does."""
        with self._lock:
            self._attached.pop((owner, epoch), None)

    def health(self) -> dict[str, float]:
        with self._lock:
            used = self._blocks.used_nbytes + len(self._own_taken) * self._own_nbytes
            capacity = self._blocks.capacity + len(self._own_offsets) * self._own_nbytes
            names = ("inline_puts", "arena_puts", "refused_puts", "stale_releases")
            return {
                "used_nbytes": used,
                "capacity_nbytes": capacity,
                "attached": len(self._attached),
                **{name: self._counts[name] for name in names},
            }

    def close(self) -> None:
        with self._lock:
            self._attached.clear()
            self._arena = None
            self._blocks = BuddyCache(0, INLINE_NBYTES)
            self._own_offsets.clear()
            self._own_taken.clear()

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1
