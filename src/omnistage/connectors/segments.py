"""Payloads that lie in no arena but in memory of their own: too large for it, or the oldest request's when it is full.

The owner makes a segment, writes and seals it, and hands its descriptor up (`publish`: its life line, at the server's end of
which it is passed to those who read it). It stays until it is released: the owner gives its bytes back to the budget, the server
and the readers drop their mappings, and the memory goes with the last of them, also when the owner has died. A segment is
known by the key of its payload. Bounded by a budget in bytes and by MAX_SEGMENTS, because each costs descriptors.
"""

from __future__ import annotations

import mmap
import os
import socket
import threading
from collections.abc import Callable

from omnistage.config.stage import EdgeId
from omnistage.connectors.base import write
from omnistage.connectors.budget import BudgetState
from omnistage.connectors.descriptors import offer_descriptor
from omnistage.connectors.memory import create_memory, seal
from omnistage.core.errors import ConnectorError
from omnistage.core.payload import MultimodalPayload, PayloadRef, TensorPlace

SEGMENT = "segment"
"""The `location` of a reference whose payload lies in a segment."""

MAX_SEGMENTS = 32

Publish = Callable[[int, int], bool]
"""`publish(key, descriptor)`: hands up a duplicate of the descriptor; False if the line takes none now."""


def segment_of(ref: PayloadRef) -> int | None:
    """The key of the segment that `ref` lies in, None for a payload that travels in any other way."""
    return ref.key if ref.location == SEGMENT and ref.inline is None else None


def memory_of(ref: PayloadRef) -> tuple[str, int, int | None]:
    """(owner, epoch) of the arena that `ref` lies in, and the key of the segment if it lies in one instead."""
    return ref.owner, ref.epoch, segment_of(ref)


def publisher(life_line: socket.socket) -> Publish:
    """Hands descriptors up a worker's life line, under {"key": n}."""
    return lambda key, descriptor: offer_descriptor(life_line, {"key": key}, descriptor)


class SegmentCache:
    """One's own segments, under the budget, and those of others that have been attached. Thread-safe."""

    def __init__(
        self, owner: str, epoch: int, *, capacity_nbytes: int, publish: Publish | None = None, poison: bool = False
    ) -> None:
        self._owner = owner, epoch
        self._publish = publish
        self._poison = poison
        self._lock = threading.Lock()
        self._budget = BudgetState(capacity_nbytes if publish is not None else 0, max_count=MAX_SEGMENTS)
        self._mapped: dict[tuple[str, int, int], mmap.mmap] = {}

    @property
    def capacity_nbytes(self) -> int:
        """The budget, and so the largest segment."""
        return self._budget.capacity_nbytes

    @property
    def used_nbytes(self) -> int:
        return self._budget.used_nbytes

    def __len__(self) -> int:
        return len(self._budget)

    def put(
        self,
        key: int,
        payload: MultimodalPayload,
        places: tuple[TensorPlace, ...],
        nbytes: int,
        oldest_of: EdgeId | None,
    ) -> bool:
        """Copies a payload into a segment of its own. False if there is no room now; ConnectorError if the machine has none."""
        with self._lock:
            if self._publish is None or not self._budget.take(key, nbytes, oldest_of):
                return False
        made = None
        try:
            made = self._make(self._publish, key, payload, places, nbytes)
        finally:
            with self._lock:
                if made is None:
                    self._budget.give_back(key)
                else:
                    self._mapped[*self._owner, key] = made
        return made is not None

    def release(self, key: int) -> bool:
        """Frees one's own segment; False if there is none under this key."""
        with self._lock:
            mapping = self._mapped.pop((*self._owner, key), None)
            if mapping is None:
                return False
            self._budget.give_back(key)
        if self._poison:
            mapping[:] = b"\xff" * len(mapping)
        return True

    def attach(self, owner: str, epoch: int, key: int, descriptor: int) -> None:
        """Maps another's segment read-only; the descriptor may be closed afterwards."""
        mapping = mmap.mmap(descriptor, os.fstat(descriptor).st_size, prot=mmap.PROT_READ)
        with self._lock:
            self._mapped[owner, epoch, key] = mapping

    def detach(self, owner: str, epoch: int, key: int) -> None:
        """Forgets it; its memory goes when the last view of it does."""
        with self._lock:
            self._mapped.pop((owner, epoch, key), None)

    def has(self, ref: PayloadRef) -> bool:
        return (ref.owner, ref.epoch, ref.key) in self._mapped

    def view(self, ref: PayloadRef) -> memoryview:
        """The bytes of `ref`. Raises ConnectorError."""
        mapping = self._mapped.get((ref.owner, ref.epoch, ref.key))
        if mapping is None:
            raise ConnectorError(f"segment {ref.key} of {ref.owner} (epoch {ref.epoch}) is not attached")
        if not 0 <= ref.nbytes <= len(mapping):
            raise ConnectorError(f"a payload of {ref.nbytes} bytes lies outside its segment of {len(mapping)} bytes")
        return memoryview(mapping)[: ref.nbytes]

    def close(self) -> None:
        with self._lock:
            self._mapped.clear()
            self._budget.clear()

    def _make(
        self, publish: Publish, key: int, payload: MultimodalPayload, places: tuple[TensorPlace, ...], nbytes: int
    ) -> mmap.mmap | None:
        descriptor = create_memory(nbytes, "a segment")
        try:
            mapping = mmap.mmap(descriptor, nbytes)
            write(payload, places, memoryview(mapping))
            seal(descriptor)
            return mapping if publish(key, descriptor) else None
        finally:
            os.close(descriptor)
