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
    """`packed` is oneDNN's own layout of a weight.

    oneDNN generates code for every count of rows, and keeps up to a megabyte of it for each: it is asked for few counts, and rows
    are added up to the next."""

    packed: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, ops: LinearOps, rows: torch.Tensor) -> torch.Tensor:
        count, computed = len(rows), padded_count(len(rows))
        if computed > count:
            rows = torch.cat([rows, rows.new_zeros(computed - count, rows.shape[1])])
        made: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return made[:count]


def padded_count(count: int) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24 ... that is not below `count`."""
    power = 1 << max(0, count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power


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
