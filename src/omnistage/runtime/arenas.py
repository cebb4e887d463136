"""The server's side of shared memory: it makes the replicas' arenas, reads out of them, and keeps those of the dead.

An arena's descriptor stays open until its replica is dead *and* the last reference into it has been released, so what a dead
worker had emitted stays readable. References are counted by the keys that were seen in reports. Knows no sockets, no processes.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field

from omnistage.connectors.memory import create_arena
from omnistage.connectors.shm import ShmConnector
from omnistage.core.payload import MultimodalPayload, PayloadRef


@dataclass(slots=True)
class ArenaState:
    """`process` owns it; `keys`: payloads that were reported and not released yet."""

    process: str
    descriptor: int
    dead: bool = False
    keys: set[int] = field(default_factory=set)


class ArenaCache:
    """Arenas by (owner, epoch), the owner being "process/replica"."""

    def __init__(self) -> None:
        self._reader = ShmConnector("server", 0)
        self._arenas: dict[tuple[str, int], ArenaState] = {}

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

    def read(self, ref: PayloadRef) -> MultimodalPayload:
        """Views, valid until the reference is released. Raises ConnectorError."""
        return self._reader.get(ref)

    def reported(self, ref: PayloadRef) -> None:
        arena = self._arena_of(ref)
        if arena is not None:
            arena.keys.add(ref.key)

    def released(self, ref: PayloadRef) -> bool:
        """True if this was the last reference into a dead replica's arena: the arena is gone now."""
        arena = self._arena_of(ref)
        if arena is None:
            return False
        arena.keys.discard(ref.key)
        return self._drop_if_unused(ref.owner, ref.epoch)

    def died(self, owner: str, epoch: int) -> bool:
        """The owner is dead; True if nobody refers to its arena: it is gone now."""
        arena = self._arenas.get((owner, epoch))
        if arena is None:
            return False
        arena.dead = True
        return self._drop_if_unused(owner, epoch)

    def __len__(self) -> int:
        return len(self._arenas)

    def close(self) -> None:
        """Closes every descriptor; idempotent."""
        for arena in self._arenas.values():
            os.close(arena.descriptor)
        self._arenas.clear()
        self._reader.close()

    def _arena_of(self, ref: PayloadRef) -> ArenaState | None:
        """None for a payload that lies in no arena: it travels inline, or never leaves its process."""
        lies_in_one = ref.inline is None and ref.connector == self._reader.name
        return self._arenas.get((ref.owner, ref.epoch)) if lies_in_one else None

    def _drop_if_unused(self, owner: str, epoch: int) -> bool:
        arena = self._arenas[owner, epoch]
        if not arena.dead or arena.keys:
            return False
        os.close(arena.descriptor)
        del self._arenas[owner, epoch]
        self._reader.detach(owner, epoch)
        return True
