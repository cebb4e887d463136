"""Rotary positions: the angles by which the planes (i, i + D/2) of queries and keys are turned (Su et al., "RoFormer", 2021)."""

from __future__ import annotations

import torch

_FIRST_POSITIONS = 1024


class RotationCache:
    """Cosines and sines by position, float32 whatever the weights are. Grows to the highest position that was asked for."""

    def __init__(self, head_dim: int, theta: float) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        self._frequencies = 1.0 / theta**exponents
        self._table = self._made(_FIRST_POSITIONS)

    def rows(self, positions: torch.Tensor) -> torch.Tensor:
        """`positions` [T] -> [T, D]: cosines of the D/2 planes, then their sines."""
        highest = int(positions.max())
        if highest >= len(self._table) or self._table.device != positions.device:
            self._table = self._made(max(2 * len(self._table), highest + 1)).to(positions.device)
        return self._table.index_select(0, positions)

    def _made(self, count: int) -> torch.Tensor:
        angles = torch.arange(count, dtype=torch.float32)[:, None] * self._frequencies
        return torch.cat([angles.cos(), angles.sin()], dim=-1)
