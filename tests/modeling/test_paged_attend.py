"""A step's attention as models call it."""

from __future__ import annotations

import numpy as np
import torch

from omnistage.modeling.attention import CacheShape, PagedCache, StepMeta
from omnistage.modeling.kernels.fallback import TorchOps
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
    q, k, v = torch.randn(3, 2, 1, 4, generator=torch.Generator().manual_seed(1))
    split = attend(0, q, k, v, scale=0.5)
    unturned = torch.cat([torch.ones(2, 2), torch.zeros(2, 2)], dim=1)  # cosine 1, sine 0
    joined = attend.joined(1, torch.cat([q, k, v], dim=1).view(2, 12), None, unturned, heads=1, scale=0.5)
    torch.testing.assert_close(joined, split.view(2, 4))
    assert torch.equal(cache.keys[0], cache.keys[1])
    assert cache.keys[0].data_ptr() != cache.keys[1].data_ptr()
    assert attend.calls == [1, 1]
    assert RotationCache(4, 10.0).rows(positions).shape == (2, 4)
