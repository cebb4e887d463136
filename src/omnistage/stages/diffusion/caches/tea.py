"""TeaCache (arXiv:2411.19108): a row does without all of its blocks while the modulated input of the first one has changed little,
step by step, since the last whole step: the sum of the changes, each put through a polynomial that was fitted to the model, stays
below a threshold. `rel_l1_thresh` and `coefficients` are called as there.
"""

from __future__ import annotations

import dataclasses

import msgspec
import torch

from omnistage.modeling.diffusion import BlockedModel, Flow
from omnistage.stages.diffusion.caches.base import Memory, StepCache


class TeaSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`rel_l1_thresh`: the sum of changes at which a step is whole again. `coefficients`: of the polynomial, highest power first;
    the default leaves a change as it is."""

    rel_l1_thresh: float = 0.2
    coefficients: tuple[float, ...] = (1.0, 0.0)


class TeaCache(StepCache):
    """See the module."""

    def __init__(self, model: BlockedModel, settings: TeaSettings) -> None:
        super().__init__(model)
        self._threshold = settings.rel_l1_thresh
        self._coefficients = settings.coefficients

    def checked(self, flow: Flow) -> tuple[Flow, torch.Tensor, int]:
        return flow, self._model.signal(flow), 0

    def decided(self, memory: Memory, change: float, signal: torch.Tensor) -> Memory | None:
        drift = memory.drift + self._expected(change)
        return dataclasses.replace(memory, signal=signal, drift=drift) if drift < self._threshold else None

    def _expected(self, change: float) -> float:
        """The change of the output that goes with one of the signal (Horner)."""
        expected = 0.0
        for coefficient in self._coefficients:
            expected = expected * change + coefficient
        return expected
