"""The text encoder: the decoder of Qwen2.5-VL without its head. Each row reads itself and what stands before it.

Prompts of a batch are padded at their ends, where nobody reads them, so no prompt depends on the others. Rows stand at three
positions (temporal, height, width), which are equal in a text; planes of a head turn by one of them, in runs. What a picture of
the prompt is, comes as rows that replace those of its tokens. Knows no templates, tokenizers or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from omnistage.models.qwen_image.settings import TextShape


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights [out, in]: `qkv` of queries, keys and values, `gate_up` of both; of the layers only `qkv` has a bias."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class TextWeights:
    embedding: torch.Tensor
    layers: Sequence[LayerWeights]
    final_norm: torch.Tensor


@dataclass(frozen=True, slots=True)
class TextInput:
    """`token_ids` [length]; `positions` [3, length], None for 0, 1, ... on all three; `pictures` [n, hidden] replace the rows of
    the n tokens `picture_token`."""

    token_ids: torch.Tensor
    positions: torch.Tensor | None = None
    pictures: torch.Tensor | None = None


class TextEncoder:
    def __init__(self, shape: TextShape, weights: TextWeights, picture_token: int) -> None:
        self.shape = shape
        self._weights = weights
        self._picture_token = picture_token
        half = shape.head_dim // 2
        self._frequencies = 1.0 / shape.rope_theta ** (torch.arange(0, half, dtype=torch.float32) * 2 / shape.head_dim)
        axes = [axis % 3 for axis, planes in enumerate(shape.rope_sections) for _ in range(planes)]
        self._axes = torch.tensor(axes, dtype=torch.int64)

    def encode(self, inputs: Sequence[TextInput]) -> list[torch.Tensor]:
        """The output of the last norm [length, hidden] for each, in order."""
        weights = self._weights
        lengths = [len(one.token_ids) for one in inputs]
        pad = torch.nn.utils.rnn.pad_sequence
        hidden = pad([self._embedded(one) for one in inputs], batch_first=True)
        turns = pad([self._turns(one) for one in inputs], batch_first=True)[:, None]  # [R, 1, length, 2 head]
        for layer in weights.layers:
            hidden = self._layer(layer, hidden, turns)
        made = self._normed(hidden, weights.final_norm)
        return [rows[:length].clone() for rows, length in zip(made, lengths, strict=True)]

    def _layer(self, layer: LayerWeights, hidden: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        shape = self.shape
        heads, kv_heads = shape.num_heads, shape.num_kv_heads
        joined = F.linear(self._normed(hidden, layer.input_norm), layer.qkv, layer.qkv_bias)
        joined = joined.view(*joined.shape[:2], heads + 2 * kv_heads, shape.head_dim).transpose(1, 2)
        turned = _turned(joined[:, : heads + kv_heads], turns)
        found = F.scaled_dot_product_attention(
            turned[:, :heads],
            turned[:, heads:],
            joined[:, heads + kv_heads :],
            is_causal=True,
            enable_gqa=heads != kv_heads,
        )
        hidden = hidden + F.linear(found.transpose(1, 2).flatten(2), layer.output)
        gate, up = F.linear(self._normed(hidden, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        return hidden + F.linear(F.silu(gate) * up, layer.down)

    def _embedded(self, one: TextInput) -> torch.Tensor:
        """[length, hidden]"""
        rows = F.embedding(one.token_ids, self._weights.embedding)
        if one.pictures is not None:
            rows[one.token_ids == self._picture_token] = one.pictures.to(rows.dtype)
        return rows

    def _turns(self, one: TextInput) -> torch.Tensor:
        """[length, 2 head]: cosines of all planes, twice, then sines."""
        length = len(one.token_ids)
        positions = torch.arange(length).expand(3, length) if one.positions is None else one.positions
        angles = positions[self._axes].T * self._frequencies  # [length, head / 2]
        return torch.cat([angles.cos(), angles.cos(), angles.sin(), angles.sin()], dim=-1)

    def _normed(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight * F.rms_norm(rows.float(), rows.shape[-1:], eps=self.shape.norm_eps).to(rows.dtype)


def _turned(rows: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """[R, heads, length, head] turned in the planes (i, i + head / 2)."""
    cosines, sines = turns.to(rows.dtype).chunk(2, dim=-1)
    one, other = rows.chunk(2, dim=-1)
    return rows * cosines + torch.cat([-other, one], dim=-1) * sines
