"""Rotary positions: the angles by which the planes (i, i + D/2) of queries and keys are turned (Su et al., "RoFormer", 2021).

Where rows stand in time and in a picture, they have three positions (temporal, height, width), and each plane is turned by one of
them: of planes 0, 1, 2, 3, ... every second of three by the height and every third by the width, as far as their sections reach
(config field `mrope_section`, interleaved). Rows with three equal positions are turned as by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_FIRST_POSITIONS = 1024


class RotationCache:
    """Cosines and sines by position, float32 whatever the weights are. Grows to the highest position that was asked for.
    `sections`: planes of the temporal position, the height and the width."""

    def __init__(
        self, head_dim: int, theta: float, device: torch.device, sections: Sequence[int] | None = None
    ) -> None:
        self._device = device
        self._axes = torch.zeros(head_dim // 2, dtype=torch.int64)
        for axis, planes in enumerate(sections or ()):
            if axis:
                self._axes[axis : 3 * planes : 3] = axis
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

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """`positions` [T], or [3, T] temporal, height and width, of rows that have their own -> [T, D] as in the table."""
        if positions.numel() == 0:
            return self._table[:0]
        table = self.reaching(int(positions.max()) + 1)
        if positions.dim() == 1:
            return table[positions]
        half = self._axes.shape[0]
        by_plane = positions[self._axes].T  # [T, D/2]
        return torch.cat([table[:, :half].gather(0, by_plane), table[:, half:].gather(0, by_plane)], dim=-1)

    def _made(self, count: int) -> torch.Tensor:
        angles = torch.arange(count, dtype=torch.float32)[:, None] * self._frequencies
        return torch.cat([angles.cos(), angles.sin()], dim=-1)
