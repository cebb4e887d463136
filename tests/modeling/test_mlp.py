"""A mixture of experts against one row after the other."""

from __future__ import annotations

import pytest
import torch

from omnistage.modeling.kernels.blocks import ExpertsWeights, GatedWeights, SharedExpert
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.linear import PlainLinear
from omnistage.modeling.mlp import ExpertsMlp

OPS = TorchOps()


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
def test_rows_go_through_the_experts_that_their_router_likes(normalised: bool, is_shared: bool) -> None:
    """Fault: an expert gets another's rows, a weight another's result; the expert of all rows is left out or not weighted."""
    random = torch.Generator().manual_seed(4)

    def linear(outer: int, inner: int) -> PlainLinear:
        return PlainLinear(torch.randn(outer, inner, generator=random))

    experts = [GatedWeights(linear(12, 8), linear(8, 6)) for _ in range(5)]
    router, shared = linear(5, 8), SharedExpert(GatedWeights(linear(20, 8), linear(8, 10)), linear(1, 8))
    rows = torch.randn(9, 8, generator=random)
    found = ExpertsMlp(ExpertsWeights(router, experts, 2, normalised, shared if is_shared else None))(OPS, rows)
    for index, row in enumerate(rows):
        chances = torch.softmax(router.weight @ row, dim=0)
        best = chances.argsort(descending=True)[:2].tolist()
        total = sum(float(chances[expert]) for expert in best) if normalised else 1.0
        wanted = sum(chances[expert] / total * OPS.gated_block(experts[expert], row[None])[0] for expert in best)
        if is_shared:
            wanted = wanted + torch.sigmoid(shared.gate(OPS, row[None])) * OPS.gated_block(shared.weights, row[None])[0]
        assert torch.allclose(found[index], torch.as_tensor(wanted), atol=1e-4)


def test_of_experts_that_are_liked_as_much_the_first_is_taken() -> None:
    """Fault: which expert computes a row depends on how a sort happens to run."""
    eye = torch.eye(2)
    gate_up = torch.cat([eye, eye])
    experts = [GatedWeights(PlainLinear(gate_up), PlainLinear(eye * (1 + index))) for index in range(40)]
    mixed = ExpertsWeights(PlainLinear(torch.zeros(40, 2)), experts, 3, normalised=True)
    row = torch.ones(1, 2)
    alone = [OPS.gated_block(expert, row) for expert in experts[:3]]
    assert torch.allclose(OPS.experts_block(mixed, row), torch.stack(alone).mean(dim=0))
