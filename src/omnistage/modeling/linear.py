"""A linear layer of a decoder: weights as they are, for kernels or torch, or packed by oneDNN where nothing can be compiled.

Packed weights serve few rows two to three times as fast as torch's own product; they replace the original and cannot be read
back. Where there is a compiler the kernels do better on the original, so nothing is packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

_PACKED_FOR_ROWS = 32


class LinearOps(Protocol):
    def linear(self, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """See `TorchOps.linear`."""


class Linear(Protocol):
    def __call__(self, ops: LinearOps, rows: torch.Tensor) -> torch.Tensor:
        """`rows` [T, in] -> [T, out]."""


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """`weight` [out, in], `bias` [out] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, ops: LinearOps, rows: torch.Tensor) -> torch.Tensor:
        return ops.linear(rows, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """`packed` is oneDNN's own layout of a weight."""

    packed: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, ops: LinearOps, rows: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return made


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN packs weights of this kind on this processor."""
    has_library = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    if device.type != "cpu" or not has_library:
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32


def packed(linear: PlainLinear) -> PackedLinear:
    made = torch.ops.mkldnn._reorder_linear_weight(linear.weight, _PACKED_FOR_ROWS)
    return PackedLinear(made, linear.bias)
