"""The border between torch and core's payload tensors; the one module that knows both sides.

A producer hands over `TorchSource`: the copy out of a device or a non-contiguous tensor happens in `copy_to`, once. A
consumer calls `to_torch`, which copies, because a received view is valid only while a bridge runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from omnistage.core.payload import TensorSource
from omnistage.core.spec import TensorSpec

_DTYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TorchSource:
    """A tensor on its way out. The producer must not write to it any more."""

    tensor: torch.Tensor

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(_NAMES[self.tensor.dtype], tuple(self.tensor.shape))

    def copy_to(self, view: memoryview) -> None:
        """Fills `spec.nbytes` bytes, C-contiguous."""
        if self.tensor.numel():
            target = torch.frombuffer(view, dtype=self.tensor.dtype).view(self.tensor.shape)
            target.copy_(self.tensor)


def to_torch(source: TensorSource, device: torch.device | None = None) -> torch.Tensor:
    """A tensor of one's own with the content of `source`."""
    if isinstance(source, TorchSource):
        return source.tensor.detach().to(device or source.tensor.device, copy=True)
    data = bytearray(source.spec.nbytes)
    source.copy_to(memoryview(data))
    tensor = torch.from_numpy(np.frombuffer(data, np.uint8)).view(_DTYPES[source.spec.dtype]).view(source.spec.shape)
    return tensor if device is None else tensor.to(device)


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of one of core's dtype names; KeyError for another."""
    return _DTYPES[name]


def rows_of(embeds: object) -> torch.Tensor:
    """Input embeddings [rows, hidden] from what a processor or a bridge made: a torch tensor, numpy array or payload tensor."""
    match embeds:
        case torch.Tensor():
            return embeds
        case np.ndarray():
            return torch.from_numpy(np.ascontiguousarray(embeds).copy())
        case TensorSource():
            return to_torch(embeds)
    raise TypeError(f"embeddings come as a tensor or an array, not as {type(embeds).__name__}")
