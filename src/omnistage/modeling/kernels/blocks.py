"""The weights of a decoder as the operations take them: each half of a layer is one operation, and so is the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from omnistage.modeling.linear import Linear, LinearOps, PanelLinear


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norms of single heads, weights [head_dim]."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class AttentionWeights:
    """`qkv` [(heads + 2 * kv_heads) * D, hidden] joins three projections; `mlp_norm` is the norm that the other half begins with.
    Norms are [hidden]."""

    input_norm: torch.Tensor
    qkv: Linear
    head_norms: HeadNorms | None
    output: Linear
    mlp_norm: torch.Tensor
    heads: int
    eps: float
    scale: float


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class GatedWeights:
    """`gate_up` [2 * inner, hidden] joins both projections, gate first; `down` [hidden, inner]."""

    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """An expert of all rows, weighted by the sigmoid of `gate` [1, hidden]."""

    weights: GatedWeights
    gate: Linear


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ExpertsWeights:
    """A sparse mixture of gated MLPs of one size; `router` [experts, hidden]. `per_row` of them compute a row, weighted by their
    chances, which are made to sum to one if `normalised`."""

    router: Linear
    experts: Sequence[GatedWeights]
    per_row: int
    normalised: bool
    shared: SharedExpert | None = None


class MlpOps(LinearOps, Protocol):
    def gated_block(self, weights: GatedWeights, normed: torch.Tensor) -> torch.Tensor:
        """See `TorchOps.gated_block`."""

    def experts_block(self, weights: ExpertsWeights, normed: torch.Tensor) -> torch.Tensor:
        """See `TorchOps.experts_block`."""


class Mlp(Protocol):
    def __call__(self, ops: MlpOps, rows: torch.Tensor) -> torch.Tensor:
        """`rows` [T, hidden], normalised -> [T, hidden]."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention: AttentionWeights
    mlp: Mlp


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class DecoderWeights:
    """`embedding` [vocab, hidden], or the head's own panels where it shares them; `final_norm` [hidden], `head` [vocab, hidden]."""

    embedding: torch.Tensor | PanelLinear
    layers: Sequence[LayerWeights]
    final_norm: torch.Tensor
    head: Linear
    eps: float


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ChainWeights:
    """Decoders of one size that run one behind another over one cache: each begins with the token that was drawn from the one
    before it."""

    links: Sequence[DecoderWeights]
