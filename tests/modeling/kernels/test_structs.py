"""What the library is given as addresses: only what it can serve."""

from __future__ import annotations

import pytest
import torch

from omnistage.modeling.kernels.blocks import GatedWeights
from omnistage.modeling.kernels.structs import gated_block, paged_step
from omnistage.modeling.linear import PlainLinear, packed
from omnistage.modeling.step import BlockTable, StepRows

LANES = 8


def weights(outer: int = 32, inner: int = 16, dtype: torch.dtype = torch.float32) -> GatedWeights:
    return GatedWeights(
        PlainLinear(torch.zeros(outer, inner, dtype=dtype)), PlainLinear(torch.zeros(inner, outer // 2))
    )


def test_binds_the_shapes_and_addresses_of_plain_weights() -> None:
    given = weights()
    bound = gated_block(given, torch.float32, LANES)
    assert bound is not None
    assert isinstance(given.gate_up, PlainLinear)
    assert bound.gate_up.weight == given.gate_up.weight.data_ptr()
    assert (bound.gate_up.outer, bound.gate_up.inner, bound.down.outer, bound.down.inner) == (32, 16, 16, 16)
    assert bound.gate_up.bias is None


@pytest.mark.parametrize(
    "given",
    [
        weights(inner=12),
        weights(outer=40),
        weights(dtype=torch.bfloat16),
        GatedWeights(PlainLinear(torch.zeros(16, 32).T), PlainLinear(torch.zeros(16, 16))),
        GatedWeights(PlainLinear(torch.zeros(32, 16), torch.zeros(64)[::2]), PlainLinear(torch.zeros(16, 16))),
        GatedWeights(packed(PlainLinear(torch.zeros(32, 16))), PlainLinear(torch.zeros(16, 16))),
    ],
    ids=["odd inner", "odd halves", "another dtype", "transposed", "strided bias", "packed"],
)
def test_what_the_library_would_misread_is_not_bound(given: GatedWeights) -> None:
    """Fault: a kernel reads beside the weights."""
    assert gated_block(given, torch.float32, LANES) is None


def test_a_step_is_bound_once_for_all_layers() -> None:
    """Fault: a step's structure is of another rotation; or it is made again for every layer."""
    step = StepRows(BlockTable.of([[1]]), [0], [0], [2], 16, torch.device("cpu"))
    first, second = torch.zeros(2, 4), torch.zeros(2, 4)
    bound = paged_step(step, first)
    assert paged_step(step, first) is bound
    assert paged_step(step, second).rotations == second.data_ptr()
    assert paged_step(step, None).rotations is None
