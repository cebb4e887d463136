"""What the library is given as addresses: only what it can serve."""

from __future__ import annotations

import pytest
import torch

from omnistage.modeling.kernels.blocks import GatedWeights
from omnistage.modeling.kernels.structs import gated_block, paged_step
from omnistage.modeling.linear import Linear, PanelLinear, PlainLinear, in_panels, packed
from omnistage.modeling.step import BlockTable, StepRows


def panels(outer: int = 32, inner: int = 16, dtype: torch.dtype = torch.float32) -> PanelLinear:
    return in_panels(PlainLinear(torch.zeros(outer, inner, dtype=dtype)))


def test_binds_the_shapes_and_addresses_of_panels() -> None:
    given = GatedWeights(panels(40, 12), panels(12, 20))
    bound = gated_block(given, torch.float32)
    assert bound is not None
    assert isinstance(given.gate_up, PanelLinear)
    assert bound.gate_up.panels == given.gate_up.panels.data_ptr()
    assert (bound.gate_up.outer, bound.gate_up.inner, bound.down.outer, bound.down.inner) == (40, 12, 12, 20)
    assert bound.gate_up.bias is None


@pytest.mark.parametrize(
    "given",
    [
        PlainLinear(torch.zeros(32, 16)),
        packed(PlainLinear(torch.zeros(32, 16))),
        panels(dtype=torch.bfloat16),
        PanelLinear(torch.zeros(1, 32, 16).transpose(1, 2), 32),
        PanelLinear(torch.zeros(1, 16, 32), 32, torch.zeros(64)[::2]),
        PanelLinear(torch.zeros(1, 16, 32), 32, torch.zeros(32, dtype=torch.bfloat16)),
    ],
    ids=["plain", "packed", "another dtype", "transposed", "strided bias", "bias of another dtype"],
)
def test_what_the_library_would_misread_is_not_bound(given: Linear) -> None:
    """Fault: a kernel reads beside the weights."""
    assert gated_block(GatedWeights(given, panels()), torch.float32) is None


def test_a_step_is_bound_once_for_all_layers() -> None:
    """Fault: a step's structure is of another rotation; or it is made again for every layer."""
    step = StepRows(BlockTable.of([[1]]), [0], [0], [2], 16, torch.device("cpu"))
    first, second = torch.zeros(2, 4), torch.zeros(2, 4)
    bound = paged_step(step, first)
    assert paged_step(step, first) is bound
    assert paged_step(step, second).rotations == second.data_ptr()
    assert paged_step(step, None).rotations is None
