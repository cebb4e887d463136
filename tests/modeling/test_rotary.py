"""Angles by position."""

from __future__ import annotations

import math

import torch

from omnistage.modeling.rotary import RotationCache


def test_angles_are_positions_by_frequencies_however_far() -> None:
    """Fault: a table that ends before the sequence does, or is made anew with other angles."""
    cache = RotationCache(4, 100.0, torch.device("cpu"))
    for positions in ([0, 3], [5000], [1, 5000]):
        rows = cache.reaching(max(positions) + 1)[positions]
        for row, position in zip(rows.tolist(), positions, strict=True):
            angles = (position, position / 10)
            wanted = [*map(math.cos, angles), *map(math.sin, angles)]
            assert all(math.isclose(one, other, abs_tol=2e-3) for one, other in zip(row, wanted, strict=True))
