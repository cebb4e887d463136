"""The attention of one step as models call it: a cache, the step's rows, and the operations that compute it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omnistage.modeling.attention import PagedCache
from omnistage.modeling.kernels.blocks import DecoderWeights
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.step import ARStep, StepRows


class PagedAttend:
    """A `modeling.protocols.Attend`. Counts its calls per layer."""

    def __init__(self, cache: PagedCache, step: StepRows, ops: TorchOps) -> None:
        self.ops = ops
        self.calls = [0] * cache.shape.num_layers
        self._cache = cache
        self._step = step

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, window: int = 0
    ) -> torch.Tensor:
        self.calls[layer] += 1
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        return self.ops.attend(q, k, v, keys, values, self._step, scale=scale, window=window)

    def decoder(self, weights: DecoderWeights, rotations: torch.Tensor, capture_layers: Sequence[int]) -> ARStep:
        self.calls = [calls + 1 for calls in self.calls]
        return self.ops.decoder(weights, self._step, rotations, self._cache, capture_layers)
