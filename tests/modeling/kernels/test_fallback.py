"""The plain operations against formulas written out."""

from __future__ import annotations

import math

import torch

from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.linear import PlainLinear, in_panels

OPS = TorchOps()


def test_adds_in_place_and_normalises() -> None:
    """Fault: the sum is lost, or the norm is taken of what was before it."""
    rows = torch.tensor([[1.0, 2.0]])
    normed = OPS.add_rms_norm(rows, torch.tensor([[2.0, 2.0]]), torch.tensor([1.0, 10.0]), 0.0)
    root = math.sqrt((9 + 16) / 2)
    assert rows.tolist() == [[3.0, 4.0]]
    torch.testing.assert_close(normed, torch.tensor([[3 / root, 40 / root]]))


def test_gates() -> None:
    """Fault: gate and up are taken for each other."""
    found = OPS.silu_mul(torch.tensor([[2.0, 3.0]]))
    assert math.isclose(found.item(), 2 / (1 + math.exp(-2)) * 3, rel_tol=1e-6)


def test_multiplies() -> None:
    """Fault: a weight is not transposed, a bias is left out."""
    weight, bias = torch.tensor([[3.0, 4.0], [5.0, 6.0]]), torch.tensor([0.5, 0.0])
    found = OPS.linear(torch.tensor([[1.0, 2.0]]), in_panels(PlainLinear(weight, bias)))
    assert found.tolist() == [[11.5, 17.0]]
