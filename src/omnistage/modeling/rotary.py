"""Rotary positions: the angles by which the planes (i, i + D/2) of queries and keys are turned (Su et al., "RoFormer", 2021)."""

from __future__ import annotations

import torch

_FIRST_POSITIONS = 1024


class RotationCache:
    """Cosines and sines by position, float32 whatever the weights are. Grows to the highest position that was asked for."""

    def __init__(self, head_dim: int, theta: float, device: torch.device) -> None:
        self._device = device
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        self._frequencies = 1.0 / theta**exponents
        self._length = 0
        self._table = self.reaching(_FIRST_POSITIONS)

    def reaching(self, length: int) -> torch.Tensor:
        """The table [`length` or more, D]: of each position the cosines of the D/2 planes, then their sines."""
        if length > self._length:
            self._length = max(2 * self._length, length)
            self._table = self._made(self._length).to(self._device)
        return self._table

    def _made(self, count: int) -> torch.Tensor:
        angles = torch.arange(count, dtype=torch.float32)[:, None] * self._frequencies
        return torch.cat([angles.cos(), angles.sin()], dim=-1)
