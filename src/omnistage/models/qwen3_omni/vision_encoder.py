"""The encoder of pictures and videos: patches [patches, values] to one row for every square of patches.

A patch is told its place twice: by what a learnt square of positions, stretched over the frame, has there, and by turning queries
and keys by its line and its column. Attention stays within a frame. What some layers hold becomes rows too, which the decoder adds
between its own layers (deepstack; Meng et al., "DeepStack", 2024). Frames and patches stand as `patches` puts them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from omnistage.models.qwen3_omni.encoder_layers import (
    Affine,
    EncoderLayer,
    EncoderWeights,
    LayerNames,
    LayerShape,
    Norm,
    Rotation,
    parts_of,
)
from omnistage.models.qwen3_omni.settings import VisionSettings

_EPS = 1e-6
_LAYER = LayerNames("norm1", ("attn.qkv",), "attn.proj", "norm2", "mlp.linear_fc1", "mlp.linear_fc2")

Frame = tuple[int, int]
"""Patches in height and width."""


@dataclass(frozen=True, slots=True)
class Merger:
    """Makes a row of every square of patches. `norm` is as wide as a patch, or as a square."""

    norm: Norm
    up: Affine
    down: Affine

    @classmethod
    def read(cls, weights: EncoderWeights, name: str, norm_width: int, settings: VisionSettings) -> Merger:
        square = settings.width * settings.merge_size**2
        return cls(
            weights.norm(f"{name}.ln_q", norm_width, _EPS),
            weights.affine(f"{name}.mlp.0", shape=[square, square]),
            weights.affine(f"{name}.mlp.2", shape=[settings.rows_width, square]),
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[patches, width] -> [rows, rows_width]"""
        normed = self.norm(x.view(-1, len(self.norm.weight)))
        return self.down(F.gelu(self.up(normed.view(-1, self.up.weight.shape[1]))))


class VisionEncoder:
    """See the module. `weights` are those below "visual."."""

    def __init__(self, weights: EncoderWeights, settings: VisionSettings) -> None:
        self._settings = settings
        width, merge = settings.width, settings.merge_size
        patch = weights.affine("patch_embed.proj", shape=[width, *settings.patch_shape])
        self._embed = Affine(patch.weight.flatten(1), patch.bias)
        self._places = weights.read("pos_embed.weight", shape=[settings.side**2, width])
        shape = LayerShape(width, settings.inner, settings.heads, _EPS, settings.activation)
        self._layers = [
            EncoderLayer.read(weights, f"blocks.{index}.", _LAYER, shape) for index in range(settings.num_layers)
        ]
        self._merger = Merger.read(weights, "merger", width, settings)
        self._between = {
            layer: Merger.read(weights, f"merger_list.{index}", width * merge**2, settings)
            for index, layer in enumerate(settings.deepstack)
        }
        half = width // settings.heads // 2
        self._frequencies = 1.0 / settings.rope_theta ** (torch.arange(0, half, 2, dtype=torch.float32) / half)

    def __call__(
        self, patches: torch.Tensor, grids: Sequence[tuple[int, int, int]]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`patches` of pictures and videos of `grids` (frames, height and width in patches) -> their rows [rows, rows_width], and
        those of the layers between [layers, rows, rows_width], if there are such layers."""
        frames = [(tall, wide) for count, tall, wide in grids for _ in range(count)]
        made = [
            self._encode(patches[rows], frames[some]) for some, rows in parts_of([math.prod(one) for one in frames])
        ]
        merged = torch.cat([rows for rows, _ in made])
        return merged, torch.cat([more for _, more in made], dim=1) if self._between else None

    def _encode(self, patches: torch.Tensor, frames: Sequence[Frame]) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = [math.prod(frame) for frame in frames]
        x = self._embed(patches.to(self._embed.weight.dtype)) + _of_each(frames, self._placed)
        angles = _of_each(frames, self._angles)
        rotation: Rotation = angles.cos(), angles.sin()
        between = []
        for index, layer in enumerate(self._layers):
            x = layer(x, lengths, rotation)
            if index in self._between:
                between.append(self._between[index](x))
        merged = self._merger(x)
        return merged, torch.stack(between) if between else merged.new_empty(0)

    def _placed(self, tall: int, wide: int) -> torch.Tensor:
        """What the square of positions has at each patch, [patches, width]: between its points, what lies between in both
        directions. Computed in float32."""
        side = self._settings.side
        square = self._places.float().view(side, side, -1)
        lines = torch.einsum("ts,sjc->tjc", _shares(tall, side), square)
        plane = torch.einsum("ws,tsc->twc", _shares(wide, side), lines)
        return self._in_squares(plane).to(self._places.dtype)

    def _angles(self, tall: int, wide: int) -> torch.Tensor:
        """[patches, head_dim / 2]: of the line, then of the column."""
        count = len(self._frequencies)
        line, column = (torch.arange(side)[:, None] * self._frequencies for side in (tall, wide))
        both = line[:, None].expand(tall, wide, count), column[None].expand(tall, wide, count)
        return self._in_squares(torch.cat(both, dim=-1))

    def _in_squares(self, plane: torch.Tensor) -> torch.Tensor:
        """[height, width, values] -> [patches, values], square by square and in each line by line."""
        merge = self._settings.merge_size
        tall, wide, values = plane.shape
        return plane.reshape(tall // merge, merge, wide // merge, merge, values).transpose(1, 2).flatten(0, 3)


def _of_each(frames: Sequence[Frame], make: Callable[[int, int], torch.Tensor]) -> torch.Tensor:
    """What is made for each, one behind another; equal frames are computed once."""
    made = {frame: make(*frame) for frame in dict.fromkeys(frames)}
    return torch.cat([made[frame] for frame in frames])


def _shares(count: int, side: int) -> torch.Tensor:
    """[count, side]: of which of `side` points each of `count` is made that lie from the first to the last of them."""
    places = torch.arange(count, dtype=torch.float32) * (side - 1) / max(1, count - 1)
    return (1 - (places[:, None] - torch.arange(side)).abs()).clamp(min=0)
