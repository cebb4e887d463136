"""The common decoder: RMS norms, rotary positions, grouped attention, a gated MLP or a mixture of them.

It is the fast way to start and to run a checkpoint of this shape; modeling.transformers_model runs every other one and
is what this is tested against. Which models have the shape is their families' knowledge: here only their configuration
is read, and refused (`decoder_shape` gives None) where it asks for anything this module does not do. The forward pass is one of
the step's operations (modeling.kernels), compiled or torch's; linear layers that read the same input are joined.
Weights are [out, in]. Biases and norms of heads are used where the checkpoint has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.checkpoint import WeightsReader
from omnistage.modeling.kernels.blocks import (
    AttentionWeights,
    DecoderWeights,
    ExpertsWeights,
    GatedWeights,
    HeadNorms,
    LayerWeights,
    Mlp,
    SharedExpert,
)
from omnistage.modeling.linear import Layout, Linear, PanelLinear, PlainLinear, embedded, laid_out
from omnistage.modeling.mlp import ExpertsMlp, GatedMlp
from omnistage.modeling.protocols import Attend
from omnistage.modeling.rotary import RotationCache
from omnistage.modeling.step import ARStep, StepRows
from omnistage.obs.process import give_free_memory_back


@dataclass(frozen=True, slots=True)
class ExpertsShape:
    """Of a mixture: `num_experts` MLPs of `intermediate_size`, `per_row` of them for each row."""

    num_experts: int
    per_row: int
    intermediate_size: int
    normalised: bool
    dense_layers: frozenset[int]
    """Layers that have one MLP instead."""
    shared_size: int = 0
    """Width of an expert of all rows; 0: there is none."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The configuration fields of the same meaning in config.json; `rope_theta` is the base of the rotary frequencies,
    `rope_sections` are their planes by position (see RotationCache)."""

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
    rope_sections: tuple[int, ...] | None = None
    experts: ExpertsShape | None = None


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
        and rope.get("mrope_interleaved", True)
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
        rope_sections=tuple(map(int, rope["mrope_section"])) if rope.get("mrope_section") else None,
        experts=_experts_shape(settings),
    )


def _experts_shape(settings: Mapping[str, Any]) -> ExpertsShape | None:
    num_experts = settings.get("num_experts") or settings.get(
        "num_local_experts"
    )  # as published, as transformers writes
    if not num_experts:
        return None
    layers, step = range(int(settings["num_hidden_layers"])), int(settings.get("decoder_sparse_step", 1))
    named = set(settings.get("mlp_only_layers") or ())
    return ExpertsShape(
        num_experts=int(num_experts),
        per_row=int(settings["num_experts_per_tok"]),
        intermediate_size=int(settings["moe_intermediate_size"]),
        normalised=bool(settings.get("norm_topk_prob", False)),
        dense_layers=frozenset(layer for layer in layers if layer in named or (layer + 1) % step),
        shared_size=int(settings.get("shared_expert_intermediate_size") or 0),
    )


class Decoder:
    """A `modeling.protocols.ARModel`. Its weights are never written to."""

    def __init__(self, shape: DecoderShape, weights: DecoderWeights) -> None:
        self.shape = shape
        self.dtype = weights.final_norm.dtype
        self.device = weights.final_norm.device
        self.weights = weights
        self._rotations = RotationCache(shape.head_dim, shape.rope_theta, self.device, shape.rope_sections)

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

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return embedded(token_ids, self.weights.embedding)

    def forward(self, step: StepRows, attend: Attend, capture_layers: Sequence[int] = ()) -> ARStep:
        """See `ARModel`."""
        rotations = self._rotations.reaching(step.longest) if step.rotary is None else step.rotary
        return attend.decoder(self.weights, rotations, capture_layers)

    def rotations(self, positions: torch.Tensor) -> torch.Tensor:
        """See `PositionedModel`."""
        return self._rotations.at(positions)


@dataclass(frozen=True, slots=True)
class DecoderNames:
    """How the tensors of a decoder are called: `body` begins the names of all but the head's."""

    body: str = "model."
    embedding: str = "embed_tokens"
    head: str = "lm_head"


def load_decoder(folder: Path, shape: DecoderShape, dtype: torch.dtype, *, layout: Layout = "plain") -> Decoder:
    """Reads the weights of a folder; `layout` says how they lie, where they can. Raises BrokenCheckpointError naming
    the tensor that is absent or of another shape."""
    return read_decoder(WeightsReader(folder, dtype), shape, layout=layout)


def read_decoder(
    reader: WeightsReader, shape: DecoderShape, *, layout: Layout = "plain", names: DecoderNames | None = None
) -> Decoder:
    """The same from files that somebody reads more of. No other tensors are read."""
    try:
        made = _Loader(reader, shape, layout, names or DecoderNames()).decoder()
    except RuntimeError as error:
        raise BrokenCheckpointError(f"{reader.folder}: the weights cannot be read: {error}") from None
    give_free_memory_back()  # what weights were read into before they were laid out
    return made


class _Loader:
    """Reads tensors by their names in checkpoints of the Llama layout."""

    def __init__(self, reader: WeightsReader, shape: DecoderShape, layout: Layout, names: DecoderNames) -> None:
        self._reader = reader
        self._shape = shape
        self._layout = layout
        self._names = names

    def decoder(self) -> Decoder:
        shape = self._shape
        body, head = self._names.body, self._names.head
        embedding = self._reader.read(f"{body}{self._names.embedding}.weight", [shape.vocab_size, shape.hidden_size])
        tied = laid_out(PlainLinear(embedding), self._layout) if shape.tied_embeddings else None
        table = tied if isinstance(tied, PanelLinear) else embedding
        del embedding  # it may be panels by now, and is not held beside them
        weights = DecoderWeights(
            table,
            [self._layer(index) for index in range(shape.num_layers)],
            self._reader.read(f"{body}norm.weight", [shape.hidden_size]),
            tied or self._linear({head: shape.vocab_size}, shape.hidden_size),
            shape.rms_norm_eps,
        )
        return Decoder(shape, weights)

    def _layer(self, index: int) -> LayerWeights:
        shape, prefix = self._shape, f"{self._names.body}layers.{index}."
        q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        attention = f"{prefix}self_attn."
        joined = {f"{attention}q_proj": q_size, f"{attention}k_proj": kv_size, f"{attention}v_proj": kv_size}
        weights = AttentionWeights(
            input_norm=self._reader.read(f"{prefix}input_layernorm.weight", [shape.hidden_size]),
            qkv=self._linear(joined, shape.hidden_size),
            head_norms=self._head_norms(attention),
            output=self._linear({f"{attention}o_proj": shape.hidden_size}, q_size),
            mlp_norm=self._reader.read(f"{prefix}post_attention_layernorm.weight", [shape.hidden_size]),
            heads=shape.num_heads,
            eps=shape.rms_norm_eps,
            scale=shape.head_dim**-0.5,
        )
        return LayerWeights(weights, self._mlp(index, f"{prefix}mlp."))

    def _mlp(self, index: int, prefix: str) -> Mlp:
        shape, experts = self._shape, self._shape.experts
        if experts is None or index in experts.dense_layers:
            return GatedMlp(self._gated(prefix, shape.intermediate_size))
        has_one_tensor = f"{prefix}experts.gate_up_proj" in self._reader
        read = self._part_of_experts if has_one_tensor else self._one_of_experts
        weights = ExpertsWeights(
            router=self._linear({f"{prefix}gate": experts.num_experts}, shape.hidden_size),
            experts=[read(f"{prefix}experts.", experts, expert) for expert in range(experts.num_experts)],
            per_row=experts.per_row,
            normalised=experts.normalised,
            shared=self._shared(prefix, experts.shared_size) if experts.shared_size else None,
        )
        return ExpertsMlp(weights)

    def _one_of_experts(self, prefix: str, experts: ExpertsShape, expert: int) -> GatedWeights:
        return self._gated(f"{prefix}{expert}.", experts.intermediate_size)

    def _part_of_experts(self, prefix: str, experts: ExpertsShape, expert: int) -> GatedWeights:
        """Of checkpoints in which the experts of a layer are one tensor."""
        count, inner, hidden = experts.num_experts, experts.intermediate_size, self._shape.hidden_size
        gate_up = self._reader.read_part(f"{prefix}gate_up_proj", [count, 2 * inner, hidden], expert)
        down = self._reader.read_part(f"{prefix}down_proj", [count, hidden, inner], expert)
        return GatedWeights(laid_out(PlainLinear(gate_up), self._layout), laid_out(PlainLinear(down), self._layout))

    def _shared(self, prefix: str, inner: int) -> SharedExpert:
        gate = self._linear({f"{prefix}shared_expert_gate": 1}, self._shape.hidden_size)
        return SharedExpert(self._gated(f"{prefix}shared_expert.", inner), gate)

    def _gated(self, prefix: str, inner: int) -> GatedWeights:
        hidden = self._shape.hidden_size
        gate_up = self._linear({f"{prefix}gate_proj": inner, f"{prefix}up_proj": inner}, hidden)
        return GatedWeights(gate_up, self._linear({f"{prefix}down_proj": hidden}, inner))

    def _head_norms(self, prefix: str) -> HeadNorms | None:
        query, key = f"{prefix}q_norm.weight", f"{prefix}k_norm.weight"
        if query not in self._reader:
            return None
        size = [self._shape.head_dim]
        return HeadNorms(self._reader.read(query, size), self._reader.read(key, size), self._shape.rms_norm_eps)

    def _linear(self, outs: Mapping[str, int], ins: int) -> Linear:
        return read_linear(self._reader, outs, ins, self._layout)


def read_linear(reader: WeightsReader, outs: Mapping[str, int], ins: int, layout: Layout) -> Linear:
    """The linear layers `outs` (name -> rows), joined, with their biases where all have one."""
    weight = reader.read_joined({f"{name}.weight": [rows, ins] for name, rows in outs.items()})
    has_bias = all(f"{name}.bias" in reader for name in outs)
    named = {f"{name}.bias": [rows] for name, rows in outs.items()}
    return laid_out(PlainLinear(weight, reader.read_joined(named) if has_bias else None), layout)
