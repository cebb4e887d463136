"""Payloads from one process to another the way of a connector with one shared-memory segment and one lock file per key.

The pattern of vLLM-Omni's shared-memory connector, written here: what is sent is packed with msgpack (a tensor as its bytes),
written into a segment of its own under a lock on a file of its own, and found by a reader that looks for the key every
millisecond, reads it under the same lock, and removes both. `Hops` measures from the moment an item was made to the moment it is
there again as an array.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import secrets
import time
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

version = "pattern of a shared-memory connector"
POLL_S = 0.001
_SPAWN = multiprocessing.get_context("spawn")


def put(key: str, payload: dict[str, Any]) -> None:
    data = msgspec.msgpack.encode(payload)
    with _lock_file(key).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        segment = shared_memory.SharedMemory(key, create=True, size=len(data))
        resource_tracker.unregister(f"/{key}", "shared_memory")  # the reader removes it
        assert segment.buf is not None
        segment.buf[: len(data)] = data
        segment.close()


def get(key: str) -> dict[str, Any] | None:
    """None while it is not there."""
    path = _lock_file(key)
    if not path.exists():
        return None
    with path.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            segment = shared_memory.SharedMemory(key)
        except FileNotFoundError:
            return None
        assert segment.buf is not None
        payload: dict[str, Any] = msgspec.msgpack.decode(bytes(segment.buf))
        segment.close()
        segment.unlink()
    path.unlink()
    return payload


def _lock_file(key: str) -> Path:
    return Path(f"/dev/shm/{key}.lock")


class Hops:
    """Two processes and a key that counts, kept warm."""

    def __init__(self) -> None:
        self._name = f"bench-{os.getpid()}-{secrets.token_hex(4)}"
        self._asked: Any = _SPAWN.SimpleQueue()
        self._hops: Any = _SPAWN.SimpleQueue()
        self._told: Any = _SPAWN.SimpleQueue()
        self._processes = [
            _SPAWN.Process(target=_send, args=(self._name, self._asked), daemon=True),
            _SPAWN.Process(target=_receive, args=(self._name, self._told, self._hops), daemon=True),
        ]
        for process in self._processes:
            process.start()

    def measure(self, items: int, pause_s: float, nbytes: int) -> list[int]:
        """Nanoseconds of each item's way."""
        self._told.put(items)
        self._asked.put((items, pause_s, nbytes))
        hops: list[int] = self._hops.get()
        return hops

    def close(self) -> None:
        self._told.put(None)
        self._asked.put(None)
        for process in self._processes:
            process.join(10)


def _send(name: str, asked: Any) -> None:
    place = 0
    while (wanted := asked.get()) is not None:
        items, pause_s, nbytes = wanted
        for _ in range(items):
            time.sleep(pause_s)
            rows = np.zeros(nbytes, np.uint8)
            made_ns = time.monotonic_ns()
            put(f"{name}-{place}", {"rows": rows.tobytes(), "dtype": "uint8", "shape": [nbytes], "made_ns": made_ns})
            place += 1


def _receive(name: str, told: Any, hops: Any) -> None:
    place = 0
    while (items := told.get()) is not None:
        found: list[int] = []
        while len(found) < items:
            payload = get(f"{name}-{place}")
            if payload is None:
                time.sleep(POLL_S)
                continue
            np.frombuffer(payload["rows"], payload["dtype"]).reshape(payload["shape"])
            found.append(time.monotonic_ns() - payload["made_ns"])
            place += 1
        hops.put(found)
