"""A step's attention as models call it."""

from __future__ import annotations

import numpy as np
import torch

from omnistage.modeling.attention import CacheShape, PagedCache, StepMeta
from omnistage.modeling.kernels.blocks import AttentionWeights
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.linear import PlainLinear
from omnistage.modeling.paged_attend import PagedAttend
from omnistage.modeling.rotary import RotationCache


def test_both_ways_use_the_layers_own_cache_and_are_counted() -> None:
    """Fault: two layers share keys, or a model that skips a layer goes unnoticed."""
    shape = CacheShape(2, 1, 4, 4, torch.float32, torch.device("cpu"))
    cache = PagedCache(shape, 2)
    meta, positions = StepMeta.of(
        np.array([[1]], np.int32), np.array([0]), np.array([0]), np.array([2]), 4, shape.device
    )
    attend = PagedAttend(cache, meta, TorchOps())
    rows = torch.tensor([[1.0, 1.0, -1.0, -1.0], [1.0, -1.0, 1.0, -1.0]])  # their norm is themselves
    ones, unit = torch.ones(4), torch.eye(4)
    unturned = torch.cat([torch.ones(2, 2), torch.zeros(2, 2)], dim=1)  # cosine 1, sine 0
    weights = AttentionWeights(ones, PlainLinear(torch.cat([unit] * 3)), None, PlainLinear(unit), ones, 1, 0.0, 0.5)
    heads = rows.view(2, 1, 4)
    split = attend(0, heads, heads, heads, scale=0.5)
    grown = rows.clone()
    attend.block(1, weights, grown, None, unturned)
    torch.testing.assert_close(grown - rows, split.view(2, 4))
    assert torch.equal(cache.keys[0], cache.keys[1])
    assert cache.keys[0].data_ptr() != cache.keys[1].data_ptr()
    assert attend.calls == [1, 1]
    assert RotationCache(4, 10.0).rows(positions).shape == (2, 4)
