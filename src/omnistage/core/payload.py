"""Tensors and metadata at the borders between stages, and the reference under which a payload travels.

Knows no tensor library: a tensor is a spec (dtype name, shape) with a read-only buffer or, inside one process, an opaque
reference to whatever the producer made. A producer hands over anything with `spec` and `copy_to(view)`; that call is the one
copy of a hand-off. `numpy()` is for public outputs; bfloat16 widens to float32 there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np

from omnistage.core.errors import ConnectorError
from omnistage.core.spec import TensorSpec


@runtime_checkable
class TensorSource(Protocol):
    """What a producer hands over. `copy_to` fills exactly `spec.nbytes` bytes, C-contiguous."""

    @property
    def spec(self) -> TensorSpec: ...

    def copy_to(self, view: memoryview) -> None: ...


@dataclass(frozen=True, slots=True)
class Tensor:
    """A received or host tensor: exactly one of `buffer` (read-only bytes) and `reference` (same process only) is set.

    A `buffer` out of an arena is valid only while the bridge that received it runs.
    """

    spec: TensorSpec
    buffer: memoryview | None = None
    reference: object | None = None

    @classmethod
    def of(cls, array: np.ndarray[Any, Any]) -> Tensor:
        """A tensor over a private, frozen copy of `array` (any numpy dtype of DTYPE_NBYTES)."""
        data = np.ascontiguousarray(array).tobytes()
        return cls(TensorSpec(array.dtype.name, tuple(array.shape)), memoryview(data))

    def copy_to(self, view: memoryview) -> None:
        if self.buffer is not None:
            view[:] = self.buffer.cast("B")
            return
        match self.reference:
            case TensorSource() as source:
                source.copy_to(view)
            case _:
                raise ConnectorError("a tensor with neither a buffer nor a source cannot be copied")

    def numpy(self) -> np.ndarray[Any, Any]:
        """A numpy array of `spec.shape`; bfloat16 comes as float32. Shares the buffer where it can."""
        buffer = self.buffer
        if buffer is None:
            owned = bytearray(self.spec.nbytes)
            self.copy_to(memoryview(owned))
            buffer = memoryview(owned)
        if self.spec.dtype == "bfloat16":
            wide = np.frombuffer(buffer, np.uint16).astype(np.uint32) << 16
            return wide.view(np.float32).reshape(self.spec.shape)
        return np.frombuffer(buffer, np.dtype(self.spec.dtype)).reshape(self.spec.shape)


@dataclass(frozen=True, slots=True)
class MultimodalPayload:
    """What one item carries: tensors and metadata, apart. Metadata is plain data (str, int, float, bool, None, list, dict).
    `lent`: the tensors lie in memory that is the sender's again once the reference is released."""

    tensors: Mapping[str, TensorSource] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    lent: bool = field(default=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.spec.nbytes for tensor in self.tensors.values())

    @property
    def is_progress(self) -> bool:
        """True for what says only how far something is: who has heard it has nothing of the answer yet."""
        return not self.tensors and self.metadata.keys() == {"progress"}

    def copied(self) -> MultimodalPayload:
        """The same in private, read-only host memory."""
        tensors = {}
        for name, tensor in self.tensors.items():
            tensors[name] = Tensor(tensor.spec, memoryview(_bytes_of(tensor)))
        return MultimodalPayload(tensors, self.metadata)

    def numpy(self, name: str) -> np.ndarray[Any, Any]:
        """The tensor `name` as a numpy array; KeyError where there is none."""
        tensor = self.tensors[name]
        return (tensor if isinstance(tensor, Tensor) else Tensor(tensor.spec, reference=tensor)).numpy()


def _bytes_of(tensor: TensorSource) -> bytes | memoryview:
    """A copy of its bytes, read-only. Out of a buffer at once, without memory that is cleared first."""
    match tensor:
        case Tensor(buffer=memoryview() as buffer):
            return bytes(buffer)
        case _:
            data = bytearray(tensor.spec.nbytes)
            tensor.copy_to(memoryview(data))
            return memoryview(data).toreadonly()


class TensorPlace(msgspec.Struct, frozen=True):
    """One tensor inside a payload's bytes; `offset` in bytes from the payload's start."""

    name: str
    spec: TensorSpec
    offset: int


class PayloadRef(msgspec.Struct, frozen=True):
    """Where a payload is. `connector` names the data plane that made it; `location` is that connector's own address.

    Up to 64 KiB of tensor bytes travel in `inline` instead (then `location` is empty). `owner` is the replica that holds
    the bytes ("process/replica"), `epoch` its incarnation, `generation` that of its block: releasing a stale ref is a
    counted no-op. `key` tells one payload from another within its owner.
    """

    connector: str
    owner: str
    epoch: int
    key: int
    tensors: tuple[TensorPlace, ...] = ()
    metadata: dict[str, Any] = {}
    nbytes: int = 0
    inline: bytes | None = None
    location: str = ""
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Concatenated:
    """Tensors of equal dtype and trailing shape as one along the first axis; copying them is still one copy."""

    parts: tuple[TensorSource, ...]
    spec: TensorSpec = field(init=False)

    def __post_init__(self) -> None:
        first = self.parts[0].spec
        rows = sum(self._lengths())
        object.__setattr__(self, "spec", TensorSpec(first.dtype, (rows, *first.shape[1:])))

    def copy_to(self, view: memoryview) -> None:
        ends = accumulate(self._lengths())
        row_nbytes = len(view) // max(1, self.spec.shape[0])
        start = 0
        for part, rows in zip(self.parts, ends, strict=True):
            end = rows * row_nbytes
            part.copy_to(view[start:end])
            start = end

    def _lengths(self) -> list[int]:
        return [part.spec.shape[0] for part in self.parts]


def merge(payloads: list[MultimodalPayload]) -> MultimodalPayload:
    """Several captures as one: tensors joined along the first axis, strings and lists joined, other metadata: the last wins."""
    if len(payloads) == 1:
        return payloads[0]
    parts: dict[str, list[TensorSource]] = {}
    metadata: dict[str, Any] = {}
    for payload in payloads:
        for name, tensor in payload.tensors.items():
            parts.setdefault(name, []).append(tensor)
        for key, value in payload.metadata.items():
            held = metadata.get(key)
            joins = type(value) in (str, list) and type(held) is type(value)
            metadata[key] = held + value if joins else value
    tensors = {name: Concatenated(tuple(found)) if len(found) > 1 else found[0] for name, found in parts.items()}
    return MultimodalPayload(tensors, metadata)
