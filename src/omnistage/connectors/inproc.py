"""The connector inside one process: the reference is the payload itself, nothing is copied.

Producers hand over fresh tensors and do not write to them afterwards; with `verify` (tests) every payload is hashed at put
and again at release, and a difference raises ConnectorError. Bounded by `capacity_nbytes`, beyond which `try_put` says None;
the oldest request of an edge may go beyond it by one payload.
"""

from __future__ import annotations

import hashlib
import itertools
import threading

from omnistage.config.stage import EdgeId
from omnistage.connectors.base import check_spec
from omnistage.connectors.budget import BudgetState
from omnistage.core.errors import ConnectorError, PayloadTooLargeError
from omnistage.core.payload import MultimodalPayload, PayloadRef


class InprocConnector:
    """One for all stages of a process. `owner` and `epoch` name it in references, so that a release finds its way here."""

    name = "inproc"

    def __init__(
        self, owner: str = "inproc", epoch: int = 0, *, capacity_nbytes: int = 2**30, verify: bool = False
    ) -> None:
        self._owner = owner
        self._epoch = epoch
        self._verify = verify
        self._lock = threading.Lock()
        self._budget = BudgetState(capacity_nbytes)
        self._held: dict[int, tuple[MultimodalPayload, bytes]] = {}
        self._stale_releases = 0
        self._keys = itertools.count()

    def try_put(self, payload: MultimodalPayload, *, oldest_of: EdgeId | None = None) -> PayloadRef | None:
        check_spec(payload)
        nbytes = payload.nbytes
        if nbytes > self._budget.capacity_nbytes:
            raise PayloadTooLargeError(
                f"a payload of {nbytes} bytes exceeds the connector's {self._budget.capacity_nbytes} bytes"
            )
        digest = _digest(payload) if self._verify else b""
        key = next(self._keys)
        with self._lock:
            if not self._budget.take(key, nbytes, oldest_of):
                return None
            self._held[key] = (payload, digest)
        return PayloadRef(self.name, self._owner, self._epoch, key, metadata=dict(payload.metadata), nbytes=nbytes)

    def can_read(self, ref: PayloadRef) -> bool:
        return True

    def get(self, ref: PayloadRef) -> MultimodalPayload:
        with self._lock:
            entry = self._held.get(ref.key) if self._is_mine(ref) else None
        if entry is None:
            raise ConnectorError(f"payload {ref.key} has been released")
        return entry[0]

    def release(self, ref: PayloadRef) -> None:
        with self._lock:
            entry = self._held.pop(ref.key, None) if self._is_mine(ref) else None
            if entry is None:
                self._stale_releases += 1
                return
            self._budget.give_back(ref.key)
        if self._verify and _digest(entry[0]) != entry[1]:
            raise ConnectorError(f"payload {ref.key} was written to after it had been handed over")

    def _is_mine(self, ref: PayloadRef) -> bool:
        return (ref.owner, ref.epoch) == (self._owner, self._epoch)

    def health(self) -> dict[str, float]:
        with self._lock:
            return {
                "used_nbytes": self._budget.used_nbytes,
                "capacity_nbytes": self._budget.capacity_nbytes,
                "payloads": len(self._held),
                "stale_releases": self._stale_releases,
            }

    def close(self) -> None:
        with self._lock:
            self._held.clear()
            self._budget.clear()


def _digest(payload: MultimodalPayload) -> bytes:
    summary = hashlib.blake2b(digest_size=16)
    for name, tensor in payload.tensors.items():
        data = bytearray(tensor.spec.nbytes)
        tensor.copy_to(memoryview(data))
        summary.update(name.encode())
        summary.update(data)
    return summary.digest()
