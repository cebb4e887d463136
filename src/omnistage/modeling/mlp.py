"""The two feed-forward blocks of the common decoders: a gated MLP, and a sparse mixture of such MLPs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omnistage.modeling.kernels.blocks import ExpertsWeights, GatedWeights, MlpOps


@dataclass(frozen=True, slots=True)
class GatedMlp:
    weights: GatedWeights

    def __call__(self, ops: MlpOps, rows: torch.Tensor) -> torch.Tensor:
        return ops.gated_block(self.weights, rows)


@dataclass(frozen=True, slots=True)
class ExpertsMlp:
    weights: ExpertsWeights

    def __call__(self, ops: MlpOps, rows: torch.Tensor) -> torch.Tensor:
        return ops.experts_block(self.weights, rows)
