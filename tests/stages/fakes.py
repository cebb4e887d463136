"""Fakes for the parts that every stage shares: a connector with little room, an engine that does as it is told."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omnistage.core.errors import PayloadTooLargeError, UnsupportedByModelError
from omnistage.core.payload import MultimodalPayload, PayloadRef, Tensor
from omnistage.stages.base import StageOutput, StageRequest
from omnistage.stages.doorway import Doorway


class TightConnector:
    """Has room for `room` payloads with tensors (one that says `occupies` counts for as many); whatever is put can be read
    until it is released. `asked`: on which edge each put was said to be the oldest request's."""

    name = "shm"

    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.payloads: dict[int, MultimodalPayload] = {}
        self.puts = 0
        self.asked: list[tuple[int, int] | None] = []
        self.descriptors: dict[tuple[str, int], int] = {}
        self.out_of_reach: set[str] = set()

    def try_put(self, payload: MultimodalPayload, *, oldest_of: tuple[int, int] | None = None) -> PayloadRef | None:
        self.asked.append(oldest_of)
        if payload.metadata.get("too_large"):
            raise PayloadTooLargeError("a payload of 9 bytes exceeds 8")
        occupies = _occupied(payload)
        if occupies > self.room:
            return None
        self.room -= occupies
        key = self.puts
        self.puts += 1
        self.payloads[key] = payload
        return PayloadRef(self.name, "main/0", 1, key, metadata=dict(payload.metadata))

    def can_read(self, ref: PayloadRef) -> bool:
        return ref.owner not in self.out_of_reach

    def get(self, ref: PayloadRef) -> MultimodalPayload:
        return self.payloads[ref.key]

    def release(self, ref: PayloadRef) -> None:
        self.room += _occupied(self.payloads.pop(ref.key))

    def attach(self, owner: str, epoch: int, descriptor: int, key: int | None = None) -> None:
        self.descriptors[owner, epoch] = descriptor
        self.out_of_reach.discard(owner)

    def detach(self, owner: str, epoch: int, key: int | None = None) -> None:
        self.descriptors.pop((owner, epoch), None)

    def health(self) -> dict[str, float]:
        return {"used_nbytes": float(len(self.payloads)), "capacity_nbytes": 1000.0}

    def close(self) -> None:
        self.payloads.clear()


def _occupied(payload: MultimodalPayload) -> int:
    return int(payload.metadata.get("occupies", 1)) if payload.tensors else 0


@dataclass
class ScriptedEngine:
    """Each step says what `script` holds next (an exception is raised); `calls` records what the host asked."""

    script: list[list[StageOutput] | Exception] = field(default_factory=list)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    refuses: Exception | None = None

    def add(self, request: StageRequest) -> None:
        self.calls.append(("add", request.request_id, request.attempt))
        if self.refuses is not None:
            raise self.refuses

    def feed(self, request_id: str, source: int, seq: int, item: MultimodalPayload | None, *, last: bool) -> None:
        self.calls.append(("feed", request_id, source, seq, last))
        if self.refuses is not None:
            raise self.refuses

    def cancel(self, request_id: str) -> None:
        self.calls.append(("cancel", request_id))

    def interrupt(self, request_id: str) -> None:
        self.calls.append(("interrupt", request_id))

    def set_ready(self, request_id: str, ready: bool) -> None:
        self.calls.append(("ready", request_id, ready))

    def has_work(self) -> bool:
        return bool(self.script)

    def step(self) -> list[StageOutput]:
        said = self.script.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    def gauges(self) -> dict[str, float]:
        return {"running": 1, "waiting": 0}


class ControlledScript(ScriptedEngine):
    def control(self, name: str, arguments: Mapping[str, Any]) -> Any:
        if name != "reset_prefix_cache":
            raise UnsupportedByModelError(f"no {name}; accepted: reset_prefix_cache")
        return {"freed": 3, **arguments}


def rows(*values: float, **metadata: Any) -> MultimodalPayload:
    """A payload of `len(values)` rows of the tensor "x"."""
    return MultimodalPayload({"x": Tensor.of(np.array(values, np.float32))}, metadata)


def text(delta: str) -> MultimodalPayload:
    return MultimodalPayload(metadata={"text": delta})


def quiet_door() -> Doorway:
    """A door at which no mail comes in."""
    return Doorway(os.eventfd(0), lambda: None)
