"""First-block cache: a row runs its first block, and does without the others while that block adds about what it added at the last
whole step (ParaAttention's idea; `residual_diff_threshold` is that of Cache-DiT).
"""

from __future__ import annotations

import msgspec
import torch

from omnistage.modeling.diffusion import BlockedModel, Flow
from omnistage.stages.diffusion.caches.base import Memory, StepCache


class FirstBlockSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`residual_diff_threshold`: the relative change (L1) of what the first block adds, below which the others are spared."""

    residual_diff_threshold: float = 0.08


class FirstBlockCache(StepCache):
    """See the module."""

    def __init__(self, model: BlockedModel, settings: FirstBlockSettings) -> None:
        super().__init__(model)
        self._threshold = settings.residual_diff_threshold

    def checked(self, flow: Flow) -> tuple[Flow, torch.Tensor, int]:
        after = self._model.block(0, flow)
        return after, after.hidden - flow.hidden, 1

    def decided(self, memory: Memory, change: float, signal: torch.Tensor) -> Memory | None:
        return memory if change < self._threshold else None
