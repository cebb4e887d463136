"""The two feed-forward blocks of the common decoders: a gated MLP, and a sparse mixture of such MLPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from omnistage.modeling.kernels.blocks import GatedWeights, MlpOps
from omnistage.modeling.linear import Linear


@dataclass(frozen=True, slots=True)
class GatedMlp:
    weights: GatedWeights

    def __call__(self, ops: MlpOps, rows: torch.Tensor) -> torch.Tensor:
        return ops.gated_block(self.weights, rows)


@dataclass(frozen=True, slots=True)
class ExpertsMlp:
    """Each row goes through the `per_row` experts that its router likes best, weighted by their probabilities, which are
    made to sum to one if `normalised`. Only experts that some row chose are computed, each over its rows at once."""

    router: Linear
    experts: Sequence[GatedMlp]
    per_row: int
    normalised: bool

    def __call__(self, ops: MlpOps, rows: torch.Tensor) -> torch.Tensor:
        chances = torch.softmax(self.router(ops, rows), dim=-1, dtype=torch.float32)
        weights, chosen = chances.topk(self.per_row, dim=-1)  # [T, per_row]
        if self.normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        weights = weights.to(rows.dtype)
        out = torch.zeros_like(rows)
        for expert in sorted(set(chosen.flatten().tolist())):
            at_rows, at_choices = (chosen == expert).nonzero(as_tuple=True)
            made = self.experts[expert](ops, rows[at_rows])
            out.index_add_(0, at_rows, made * weights[at_rows, at_choices, None])
        return out
