"""Where tokens stand, as angles: tokens of pictures at their picture's number, height and width, those of the text on a diagonal.

Heights and widths count from the middle of a picture; the text goes on where the widest picture ends. Planes (2 i, 2 i + 1) of a
head are turned, in three runs: by the picture's number, by the height and by the width (Su et al., "RoFormer", 2021).
"""

from __future__ import annotations

from functools import lru_cache

import torch

from omnistage.models.qwen_image.settings import Grid

_THETA = 10000.0


@lru_cache(maxsize=128)
def rotations(axes: tuple[int, ...], grids: tuple[Grid, ...], length: int) -> torch.Tensor:
    """[`length` + tokens of all `grids`, planes], complex64: of the text, then of the pictures. `axes`: widths of the three runs,
    twice their planes. Kept for the last sizes that were asked for; not to be written to."""
    start = max(max(grid) // 2 for grid in grids)
    text = torch.arange(start, start + length)[:, None].expand(length, 3)
    positions = torch.cat([text, *(_inside(index, grid) for index, grid in enumerate(grids))])
    frequencies = [1.0 / torch.pow(_THETA, torch.arange(0, width, 2, dtype=torch.float32) / width) for width in axes]
    angles = [positions[:, axis, None] * inverse for axis, inverse in enumerate(frequencies)]
    whole = torch.cat(angles, dim=1)
    return torch.polar(torch.ones_like(whole), whole)


def _inside(index: int, grid: Grid) -> torch.Tensor:
    """[tokens, 3]: line by line."""
    tall, wide = (torch.arange(size) - (size - size // 2) for size in grid)
    return torch.cartesian_prod(torch.tensor([index]), tall, wide)
