"""A step's attention as models call it."""

from __future__ import annotations

import torch

from omnistage.modeling.attention import CacheShape, PagedCache
from omnistage.modeling.kernels.blocks import AttentionWeights, DecoderWeights, GatedWeights, LayerWeights
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.linear import PlainLinear
from omnistage.modeling.mlp import GatedMlp
from omnistage.modeling.paged_attend import PagedAttend
from omnistage.modeling.step import BlockTable, StepRows


def test_both_ways_use_the_layers_own_cache_and_are_counted() -> None:
    """Fault: two layers share keys, or a model that skips a layer goes unnoticed."""
    shape = CacheShape(2, 1, 4, 4, torch.float32, torch.device("cpu"))
    split, whole = PagedCache(shape, 2), PagedCache(shape, 2)
    rows = torch.tensor([[1.0, 1.0, -1.0, -1.0], [1.0, -1.0, 1.0, -1.0]])  # their norm is themselves
    step = StepRows(BlockTable.of([[1]]), [0], [0], [2], 4, shape.device, logit_rows=[0, 1], embeds=rows)
    ones, unit, nothing = torch.ones(4), torch.eye(4), torch.zeros(4, 4)
    unturned = torch.cat([torch.ones(2, 2), torch.zeros(2, 2)], dim=1)  # cosine 1, sine 0
    silent = GatedMlp(GatedWeights(PlainLinear(torch.zeros(8, 4)), PlainLinear(nothing)))
    first, second = (
        AttentionWeights(ones, PlainLinear(torch.cat([unit] * 3)), None, PlainLinear(output), ones, 1, 0.0, 0.5)
        for output in (nothing, unit)
    )
    weights = DecoderWeights(
        unit, [LayerWeights(first, silent), LayerWeights(second, silent)], ones, PlainLinear(unit), 0.0
    )
    attend = PagedAttend(split, step, TorchOps())
    heads = rows.view(2, 1, 4)
    for _ in range(2):
        found = attend(0, heads, heads, heads, scale=0.5)
    attend(1, heads, heads, heads, scale=0.5)
    assert attend.calls == [2, 1]
    attend = PagedAttend(whole, step, TorchOps())
    hidden = attend.decoder(weights, unturned, [1, 2]).hidden
    assert attend.calls == [1, 1]
    torch.testing.assert_close(hidden[1], rows)
    grown = rows + found.view(2, 4)
    torch.testing.assert_close(hidden[2], TorchOps().add_rms_norm(grown, None, ones, 0.0))
    for kept in (split, whole):
        torch.testing.assert_close(kept.keys[0], kept.keys[1])
        assert kept.keys[0].data_ptr() != kept.keys[1].data_ptr()
