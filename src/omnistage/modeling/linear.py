"""A linear layer of a decoder: weights in panels for the kernels, packed by oneDNN where nothing can be compiled, or as they are.

Panels and packed weights replace the original: a model is never held twice. oneDNN's serve few rows two to three times as fast as
torch's own product, and cannot be read back; panels can.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
import torch.nn.functional as F

PANEL = 32
"""Outputs that lie side by side; see kernels/source/linear.h."""
_PACKED_FOR_ROWS = 32


class LinearOps(Protocol):
    def linear(self, rows: torch.Tensor, layer: PanelLinear) -> torch.Tensor:
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
        return F.linear(rows, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class PanelLinear:
    """`panels` [out / PANEL rounded up, in, PANEL], contiguous; `bias` [outs] or None. What lies behind `outs` means nothing."""

    panels: torch.Tensor
    outs: int
    bias: torch.Tensor | None = None

    def __call__(self, ops: LinearOps, rows: torch.Tensor) -> torch.Tensor:
        return ops.linear(rows, self)

    def weight_rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """The weights [n, in] of `outputs` [n]; IndexError for an output that there is not."""
        if len(outputs) and not 0 <= int(outputs.min()) <= int(outputs.max()) < self.outs:
            raise IndexError(f"outputs {outputs.tolist()}; accepted: 0 to {self.outs - 1}")
        return self.panels[outputs // PANEL, :, outputs % PANEL]


def embedded(tokens: torch.Tensor, table: torch.Tensor | PanelLinear) -> torch.Tensor:
    """`tokens` [T] -> their rows [T, hidden] of an embedding [vocab, hidden], which may be the panels of a head."""
    return table.weight_rows(tokens) if isinstance(table, PanelLinear) else F.embedding(tokens, table)


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


Layout = Literal["plain", "panels", "packed"]
"""How weights lie: as in a checkpoint, in panels, or as oneDNN has it."""


def laid_out(linear: PlainLinear, layout: Layout) -> Linear:
    """The layer with its weights in `layout`, where that serves their kind; else as it is."""
    dtype, device = linear.weight.dtype, linear.weight.device
    if layout == "panels" and can_panel(dtype, device):
        return in_panels(linear)
    if layout == "packed" and can_pack(dtype, device):
        return packed(linear)
    return linear


def with_bias(linear: Linear, bias: torch.Tensor) -> Linear:
    """The layer with `bias` [out] in place of its own. Weights are shared."""
    match linear:
        case PlainLinear() | PanelLinear() | PackedLinear():
            return replace(linear, bias=bias)
    raise TypeError(f"a {type(linear).__name__} has no bias")


def can_panel(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels compute with weights of this kind."""
    return device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)


def in_panels(linear: PlainLinear) -> PanelLinear:
    outs, ins = linear.weight.shape
    whole = F.pad(linear.weight, (0, 0, 0, -outs % PANEL)) if outs % PANEL else linear.weight
    return PanelLinear(whole.view(-1, PANEL, ins).transpose(1, 2).contiguous(), outs, linear.bias)


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
