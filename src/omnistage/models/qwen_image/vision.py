"""The vision encoder of Qwen2.5-VL: patches of a picture to one row for every square of patches, as the text encoder reads them.

Patches stand square by square (modeling.patches). In most layers a patch sees its window only, some squares on each side; in a few
layers all of them. Inside, windows stand one behind another, those of equal sizes together, so that attention over them is a few
batches without padding. Knows no prompts and no files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F

from omnistage.models.qwen_image.settings import VisionShape
from omnistage.models.qwen_image.transformer import Affine

_EPS = 1e-6
_THETA = 10000.0

Runs = tuple[tuple[int, int], ...]
"""How many windows of how many patches, one behind another."""


@dataclass(frozen=True, slots=True)
class VisionLayer:
    """`qkv` [3 width, width], `gate_up` [2 inner, width]."""

    first_norm: torch.Tensor
    qkv: Affine
    output: Affine
    second_norm: torch.Tensor
    gate_up: Affine
    down: Affine


@dataclass(frozen=True, slots=True)
class VisionWeights:
    """`embedding` [width, values of a patch]; `merge_up` reads the patches of a square side by side."""

    embedding: torch.Tensor
    layers: Sequence[VisionLayer]
    merge_norm: torch.Tensor
    merge_up: Affine
    merge_down: Affine


class VisionEncoder:
    def __init__(self, shape: VisionShape, weights: VisionWeights) -> None:
        self.shape = shape
        self._weights = weights
        quarter = shape.width // shape.heads // 2
        self._frequencies = 1.0 / _THETA ** (torch.arange(0, quarter, 2, dtype=torch.float32) / quarter)

    def encode(self, patches: torch.Tensor, tall: int, wide: int) -> torch.Tensor:
        """`patches` [tall * wide, values] of one picture -> rows [squares, hidden of the text encoder]."""
        shape, weights = self.shape, self._weights
        order, runs = windows(tall // shape.merge, wide // shape.merge, shape.window)
        whole = ((1, tall * wide),)
        rows = F.linear(patches.to(weights.embedding.dtype), weights.embedding)
        rows = self._reordered(rows, order)
        turns = self._reordered(self._angles(tall, wide), order)
        turns = torch.cat([turns.cos(), turns.sin()], dim=-1)
        for index, layer in enumerate(weights.layers):
            runs_of = whole if index in shape.full_layers else tuple((count, n * shape.merge**2) for count, n in runs)
            rows = self._layer(layer, rows, turns, runs_of)
        squares = _normed(rows, weights.merge_norm).view(len(order), -1)
        merged = weights.merge_down(F.gelu(weights.merge_up(squares)))
        made = torch.empty_like(merged)
        made[order] = merged
        return made

    def _layer(self, layer: VisionLayer, rows: torch.Tensor, turns: torch.Tensor, runs: Runs) -> torch.Tensor:
        heads = layer.qkv(_normed(rows, layer.first_norm)).view(len(rows), 3, self.shape.heads, -1)
        query, key = _turned(heads[:, :2], turns).unbind(1)
        rows = rows + layer.output(_attended(query, key, heads[:, 2], runs))
        gate, up = layer.gate_up(_normed(rows, layer.second_norm)).chunk(2, dim=-1)
        return rows + layer.down(F.silu(gate) * up)

    def _reordered(self, rows: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Patches [n, values], square by square, by the order of the squares."""
        return rows.view(len(order), self.shape.merge**2, -1)[order].flatten(0, 1)

    def _angles(self, tall: int, wide: int) -> torch.Tensor:
        """[patches, head / 2]: of the line, then of the column, square by square."""
        merge, count = self.shape.merge, len(self._frequencies)
        line = (torch.arange(tall)[:, None] * self._frequencies)[:, None].expand(tall, wide, count)
        column = (torch.arange(wide)[:, None] * self._frequencies)[None].expand(tall, wide, count)
        plane = torch.cat([line, column], dim=-1)
        cut = plane.view(tall // merge, merge, wide // merge, merge, 2 * count)
        return cut.transpose(1, 2).flatten(0, 3)


@lru_cache(maxsize=16)
def windows(tall: int, wide: int, window: int) -> tuple[torch.Tensor, Runs]:
    """The squares of a picture of tall x wide squares, window by window from its upper left corner, and how many windows there are
    of how many squares. Windows at its right and lower edges may be smaller."""
    squares = torch.arange(tall * wide).view(tall, wide)
    parts: list[torch.Tensor] = []
    runs: list[tuple[int, int]] = []
    for top, bottom, high in _cut(tall, window):
        for left, right, broad in _cut(wide, window):
            block = squares[top:bottom, left:right]
            tiles = block.reshape(-1, high, block.shape[1] // broad, broad).transpose(1, 2)
            parts.append(tiles.flatten())
            runs.append((tiles.shape[0] * tiles.shape[1], high * broad))
    return torch.cat(parts), tuple(runs)


def _cut(side: int, window: int) -> Iterator[tuple[int, int, int]]:
    """What whole windows cover, and what is left: from, to, and the side of a window in it."""
    covered = side // window * window
    if covered:
        yield 0, covered, window
    if covered < side:
        yield covered, side, side - covered


def _attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, runs: Runs) -> torch.Tensor:
    """Each [patches, heads, head] -> [patches, heads x head]; a patch sees its own window."""
    made, start = [], 0
    for count, length in runs:
        end = start + count * length
        q, k, v = (x[start:end].view(count, length, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
        made.append(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(end - start, -1))
        start = end
    return torch.cat(made)


def _turned(heads: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """[patches, 2, heads, head], turned in the planes (i, i + head / 2); computed in float32."""
    cosine, sine = turns[:, None, None].chunk(2, dim=-1)
    low, high = heads.float().chunk(2, dim=-1)
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1).to(heads.dtype)


def _normed(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * F.rms_norm(rows.float(), rows.shape[-1:], eps=_EPS).to(rows.dtype)
