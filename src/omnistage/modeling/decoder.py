"""The common dense decoder in plain torch: RMS norms, rotary positions, grouped attention, gated MLP.

It is the fast way to start and to run a checkpoint of this shape; modeling.transformers_model runs every other one and
is what this is tested against. Which models have the shape is their families' knowledge: here only their configuration
is read, and refused (`decoder_shape` gives None) where it asks for anything this module does not do. Linear layers that
read the same input are joined into one. Rows are [T, hidden], weights [out, in]. Biases and norms of queries and keys
are used where the checkpoint has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.checkpoint import WeightsReader
from omnistage.modeling.protocols import ARStep, Attend


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The configuration fields of the same meaning in config.json; `rope_theta` is the base of the rotary frequencies."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float
    rope_theta: float
    tied_embeddings: bool


def decoder_shape(settings: Mapping[str, Any]) -> DecoderShape | None:
    """The shape that a config.json describes; None if it asks for something else. KeyError, ValueError or TypeError if it
    is no configuration of a decoder."""
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    windows = settings.get("use_sliding_window", True) and settings.get("sliding_window")
    is_plain = (
        rope.get("rope_type", rope.get("type", "default")) == "default"
        and settings.get("hidden_act", "silu") == "silu"
        and not windows
        and not settings.get("mlp_bias")
        and not settings.get("quantization_config")
        and settings.get("partial_rotary_factor", 1.0) == 1.0
        and set(settings.get("layer_types") or ["full_attention"]) == {"full_attention"}
    )
    if not is_plain:
        return None
    heads, hidden = int(settings["num_attention_heads"]), int(settings["hidden_size"])
    return DecoderShape(
        vocab_size=int(settings["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(settings["intermediate_size"]),
        num_layers=int(settings["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(settings.get("num_key_value_heads") or heads),
        head_dim=int(settings.get("head_dim") or hidden // heads),
        max_positions=int(settings["max_position_embeddings"]),
        rms_norm_eps=float(settings["rms_norm_eps"]),
        rope_theta=float(rope.get("rope_theta") or settings.get("rope_theta") or 10000.0),
        tied_embeddings=bool(settings.get("tie_word_embeddings", False)),
    )


@dataclass(frozen=True, slots=True)
class _Linear:
    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return F.linear(rows, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: torch.Tensor
    qkv: _Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: _Linear
    mlp_norm: torch.Tensor
    gate_up: _Linear
    down: _Linear


class Decoder:
    """A `modeling.protocols.ARModel`. Its weights are never written to."""

    def __init__(
        self,
        shape: DecoderShape,
        layers: Sequence[_Layer],
        *,
        embedding: torch.Tensor,
        final_norm: torch.Tensor,
        head: torch.Tensor,
    ) -> None:
        self.shape = shape
        self._layers = tuple(layers)
        self._embedding = embedding
        self._final_norm = final_norm
        self._head = head
        exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        self._frequencies = 1.0 / shape.rope_theta**exponents

    @property
    def num_layers(self) -> int:
        return self.shape.num_layers

    @property
    def num_kv_heads(self) -> int:
        return self.shape.num_kv_heads

    @property
    def head_dim(self) -> int:
        return self.shape.head_dim

    @property
    def hidden_size(self) -> int:
        return self.shape.hidden_size

    @property
    def vocab_size(self) -> int:
        return self.shape.vocab_size

    @property
    def max_positions(self) -> int:
        return self.shape.max_positions

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    @property
    def device(self) -> torch.device:
        return self._embedding.device

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(token_ids, self._embedding)

    def forward(
        self,
        *,
        token_ids: torch.Tensor | None,
        embeds: torch.Tensor | None,
        positions: torch.Tensor,
        attend: Attend,
        logit_rows: torch.Tensor,
        capture_layers: Sequence[int] = (),
    ) -> ARStep:
        """See `ARModel`."""
        if embeds is None:
            assert token_ids is not None
            embeds = self.embed(token_ids)
        rows = embeds
        rotation = self._rotation(positions)
        hidden: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(self._layers):
            if index in capture_layers:
                hidden[index] = rows
            rows = rows + self._attention(index, layer, rows, rotation, attend)
            rows = rows + self._mlp(layer, rows)
        rows = self._norm(rows, self._final_norm)
        if self.num_layers in capture_layers:
            hidden[self.num_layers] = rows
        logits = F.linear(rows[logit_rows], self._head)
        return ARStep(logits.float(), hidden)

    def _attention(
        self,
        index: int,
        layer: _Layer,
        rows: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        attend: Attend,
    ) -> torch.Tensor:
        heads, kv_heads = self.shape.num_heads, self.shape.num_kv_heads
        joined = layer.qkv(self._norm(rows, layer.input_norm))
        q, k, v = joined.view(len(rows), -1, self.shape.head_dim).tensor_split([heads, heads + kv_heads], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            q, k = self._norm(q, layer.query_norm), self._norm(k, layer.key_norm)
        q, k = _rotate(q, rotation), _rotate(k, rotation)
        found = attend(index, q, k, v, scale=self.shape.head_dim**-0.5)
        return layer.output(found.reshape(len(rows), -1))

    def _mlp(self, layer: _Layer, rows: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(self._norm(rows, layer.mlp_norm)).chunk(2, dim=-1)
        return layer.down(F.silu(gate) * up)

    def _norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(rows, (rows.shape[-1],), weight, self.shape.rms_norm_eps)

    def _rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine [T, 1, head_dim]; angles in float32 whatever the weights are."""
        angles = positions.float()[:, None] * self._frequencies.to(positions.device)
        angles = torch.cat([angles, angles], dim=-1)[:, None]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def _rotate(rows: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """`rows` [T, heads, D], turned in the planes (i, i + D/2)."""
    cosine, sine = rotation
    first, second = rows.chunk(2, dim=-1)
    return rows * cosine + torch.cat([-second, first], dim=-1) * sine


def load_decoder(folder: Path, shape: DecoderShape, dtype: torch.dtype) -> Decoder:
    """Reads the weights of a folder. Raises BrokenCheckpointError naming the tensor that is absent or of another shape."""
    reader = WeightsReader(folder, dtype)
    try:
        hidden = shape.hidden_size
        embedding = reader.read("model.embed_tokens.weight", [shape.vocab_size, hidden])
        layers = [_read_layer(reader, f"model.layers.{index}.", shape) for index in range(shape.num_layers)]
        return Decoder(
            shape,
            layers,
            embedding=embedding,
            final_norm=reader.read("model.norm.weight", [hidden]),
            head=embedding if shape.tied_embeddings else reader.read("lm_head.weight", [shape.vocab_size, hidden]),
        )
    except RuntimeError as error:
        raise BrokenCheckpointError(f"{folder}: the weights cannot be read: {error}") from None


def _read_layer(reader: WeightsReader, prefix: str, shape: DecoderShape) -> _Layer:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."

    def linear(outs: Mapping[str, int], ins: int) -> _Linear:
        """The linear layers `outs` (name -> rows), joined."""
        weight = reader.read_joined({f"{name}.weight": [rows, ins] for name, rows in outs.items()})
        has_bias = all(f"{name}.bias" in reader for name in outs)
        bias = reader.read_joined({f"{name}.bias": [rows] for name, rows in outs.items()}) if has_bias else None
        return _Linear(weight, bias)

    def norm_of_heads(name: str) -> torch.Tensor | None:
        return reader.read(name, [shape.head_dim]) if name in reader else None

    return _Layer(
        input_norm=reader.read(f"{prefix}input_layernorm.weight", [hidden]),
        qkv=linear(
            {f"{attention}q_proj": q_size, f"{attention}k_proj": kv_size, f"{attention}v_proj": kv_size}, hidden
        ),
        query_norm=norm_of_heads(f"{attention}q_norm.weight"),
        key_norm=norm_of_heads(f"{attention}k_norm.weight"),
        output=linear({f"{attention}o_proj": hidden}, q_size),
        mlp_norm=reader.read(f"{prefix}post_attention_layernorm.weight", [hidden]),
        gate_up=linear({f"{mlp}gate_proj": inner, f"{mlp}up_proj": inner}, hidden),
        down=linear({f"{mlp}down_proj": hidden}, inner),
    )
