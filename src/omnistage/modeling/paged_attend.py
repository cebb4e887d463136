"""The attention of one step as models call it: a cache, the step's rows, and the operations that compute it."""

from __future__ import annotations

import torch

from omnistage.modeling.attention import PagedCache, StepMeta
from omnistage.modeling.kernels.blocks import AttentionWeights
from omnistage.modeling.kernels.fallback import TorchOps


class PagedAttend:
    """A `modeling.protocols.Attend`. Counts its calls per layer."""

    def __init__(self, cache: PagedCache, meta: StepMeta, ops: TorchOps) -> None:
        self.ops = ops
        self.calls = [0] * cache.shape.num_layers
        self._cache = cache
        self._meta = meta

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, window: int = 0
    ) -> torch.Tensor:
        self.calls[layer] += 1
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        return self.ops.attend(q, k, v, keys, values, self._meta, scale=scale, window=window)

    def block(
        self,
        layer: int,
        weights: AttentionWeights,
        rows: torch.Tensor,
        added: torch.Tensor | None,
        rotation: torch.Tensor,
    ) -> torch.Tensor:
        self.calls[layer] += 1
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        return self.ops.attention_block(weights, rows, added, rotation, keys, values, self._meta)
