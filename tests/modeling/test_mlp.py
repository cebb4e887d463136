"""A mixture of experts against one row after the other."""

from __future__ import annotations

import pytest
import torch

from omnistage.modeling.kernels.blocks import GatedWeights
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.linear import PlainLinear
from omnistage.modeling.mlp import ExpertsMlp, GatedMlp

OPS = TorchOps()


@pytest.mark.parametrize("normalised", [False, True])
def test_rows_go_through_the_experts_that_their_router_likes(normalised: bool) -> None:
    """Fault: an expert gets another's rows, a weight another's result."""
    random = torch.Generator().manual_seed(4)

    def linear(outer: int, inner: int) -> PlainLinear:
        return PlainLinear(torch.randn(outer, inner, generator=random))

    experts = [GatedMlp(GatedWeights(linear(12, 8), linear(8, 6))) for _ in range(5)]
    router = linear(5, 8)
    rows = torch.randn(9, 8, generator=random)
    found = ExpertsMlp(router, experts, 2, normalised)(OPS, rows)
    for index, row in enumerate(rows):
        chances = torch.softmax(router.weight @ row, dim=0)
        best = chances.argsort(descending=True)[:2].tolist()
        total = sum(float(chances[expert]) for expert in best) if normalised else 1.0
        wanted = sum(chances[expert] / total * experts[expert](OPS, row[None])[0] for expert in best)
        assert torch.allclose(found[index], torch.as_tensor(wanted), atol=1e-4)
