"""The server's side of shared memory: it makes the replicas' arenas, reads out of them, and keeps those of the dead.

An arena's descriptor stays open until its replica is dead *and* the last reference into it has been released, so what a dead
worker had emitted stays readable. References are counted by the keys that were seen in reports. A segment holds one payload:
it stays until that is released, or, if no report has named it, until its maker is dead. Knows no sockets, no processes.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field

from omnistage.connectors.memory import create_arena
from omnistage.connectors.segments import segment_of
from omnistage.connectors.shm import ShmConnector
from omnistage.core.payload import MultimodalPayload, PayloadRef


@dataclass(slots=True)
class ArenaState:
    """`process` owns it; `keys`: payloads that were reported and not released yet."""

    process: str
    descriptor: int
    dead: bool = False
    keys: set[int] = field(default_factory=set)


@dataclass(slots=True)
class SegmentState:
    """`readers`: (owner, epoch) of the workers that have its descriptor."""

    descriptor: int
    reported: bool = False
    readers: set[tuple[str, int]] = field(default_factory=set)


class ArenaCache:
    """Arenas by (owner, epoch), the owner being "process/replica", and segments by (owner, epoch, key)."""

    def __init__(self) -> None:
        self._reader = ShmConnector("server", 0)
        self._arenas: dict[tuple[str, int], ArenaState] = {}
        self._segments: dict[tuple[str, int, int], SegmentState] = {}

    def holdings(self) -> dict[str, int]:
        """How much is kept: arenas of the living and the dead, payloads in them that are not released, segments."""
        return {
            "arenas": len(self._arenas),
            "payloads": sum(len(arena.keys) for arena in self._arenas.values()),
            "segments": len(self._segments),
        }

    def create(self, process: str, owner: str, epoch: int, nbytes: int) -> int:
        """The descriptor of a new arena; it stays this cache's. Raises ConnectorError."""
        descriptor = create_arena(nbytes)
        self._arenas[owner, epoch] = ArenaState(process, descriptor)
        self._reader.attach(owner, epoch, descriptor)
        return descriptor

    def of_processes(self, processes: Collection[str]) -> list[tuple[str, int, int]]:
        """(owner, epoch, descriptor) of every arena that `processes` own."""
        return [
            (owner, epoch, arena.descriptor)
            for (owner, epoch), arena in self._arenas.items()
            if arena.process in processes
        ]

    def keep_segment(self, owner: str, epoch: int, key: int, descriptor: int) -> None:
        """From now on the descriptor is this cache's."""
        self._segments[owner, epoch, key] = SegmentState(descriptor)

    def has_segment(self, ref: PayloadRef) -> bool:
        return self._segment_of(ref) is not None

    def lend_segment(self, ref: PayloadRef, reader: tuple[str, int]) -> int | None:
        """The descriptor of the segment that `ref` lies in, the first time that `reader` needs it; else None."""
        segment = self._segment_of(ref)
        if segment is None or reader in segment.readers:
            return None
        segment.readers.add(reader)
        return segment.descriptor

    def readers_of(self, ref: PayloadRef) -> frozenset[tuple[str, int]]:
        """Who has been lent the segment that `ref` lies in."""
        segment = self._segment_of(ref)
        return frozenset() if segment is None else frozenset(segment.readers)

    def read(self, ref: PayloadRef) -> MultimodalPayload:
        """Views, valid until the reference is released. Raises ConnectorError."""
        segment = self._segment_of(ref)
        if segment is not None and not self._reader.can_read(ref):
            self._reader.attach(ref.owner, ref.epoch, segment.descriptor, ref.key)
        return self._reader.get(ref)

    def reported(self, ref: PayloadRef) -> None:
        segment = self._segment_of(ref)
        if segment is not None:
            segment.reported = True
        arena = self._arena_of(ref)
        if arena is not None:
            arena.keys.add(ref.key)

    def released(self, ref: PayloadRef) -> bool:
        """True if this was the last reference into a dead replica's arena: the arena is gone now. A segment always is."""
        if self.has_segment(ref):
            self._drop_segment(ref.owner, ref.epoch, ref.key)
            return False
        arena = self._arena_of(ref)
        if arena is None:
            return False
        arena.keys.discard(ref.key)
        return self._drop_if_unused(ref.owner, ref.epoch)

    def died(self, owner: str, epoch: int) -> bool:
        """The owner is dead; True if nobody refers to its arena: it is gone now."""
        unheard_of = [place for place, segment in self._segments.items() if not segment.reported]
        for place in unheard_of:
            if place[:2] == (owner, epoch):
                self._drop_segment(*place)
        arena = self._arenas.get((owner, epoch))
        if arena is None:
            return False
        arena.dead = True
        return self._drop_if_unused(owner, epoch)

    @property
    def num_segments(self) -> int:
        return len(self._segments)

    def __len__(self) -> int:
        return len(self._arenas)

    def close(self) -> None:
        """Closes every descriptor; idempotent."""
        for arena in self._arenas.values():
            os.close(arena.descriptor)
        self._arenas.clear()
        for segment in self._segments.values():
            os.close(segment.descriptor)
        self._segments.clear()
        self._reader.close()

    def _arena_of(self, ref: PayloadRef) -> ArenaState | None:
        """None for a payload that lies in no arena: it travels inline, or never leaves its process."""
        lies_in_one = ref.inline is None and ref.connector == self._reader.name and segment_of(ref) is None
        return self._arenas.get((ref.owner, ref.epoch)) if lies_in_one else None

    def _segment_of(self, ref: PayloadRef) -> SegmentState | None:
        key = segment_of(ref)
        return None if key is None else self._segments.get((ref.owner, ref.epoch, key))

    def _drop_segment(self, owner: str, epoch: int, key: int) -> None:
        os.close(self._segments.pop((owner, epoch, key)).descriptor)
        self._reader.detach(owner, epoch, key)

    def _drop_if_unused(self, owner: str, epoch: int) -> bool:
        arena = self._arenas[owner, epoch]
        if not arena.dead or arena.keys:
            return False
        os.close(arena.descriptor)
        del self._arenas[owner, epoch]
        self._reader.detach(owner, epoch)
        return True
