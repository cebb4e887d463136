"""The weights of a decoder layer's two halves, as the operations take them: each half is one operation."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omnistage.modeling.linear import Linear


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
