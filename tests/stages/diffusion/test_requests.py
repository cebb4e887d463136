"""When unfinished pictures are shown."""

from __future__ import annotations

import pytest

from omnistage.stages.diffusion.requests import preview_steps


@pytest.mark.parametrize(
    ("steps", "partial_images", "shown"),
    [
        (20, 3, {5: 0, 10: 1, 15: 2}),
        (6, 2, {2: 0, 4: 1}),
        (4, 0, {}),
        (2, 3, {1: 0}),
        (1, 3, {}),
        (3, 3, {1: 0, 2: 1}),
    ],
)
def test_partial_pictures_are_spread_over_the_steps(steps: int, partial_images: int, shown: dict[int, int]) -> None:
    """Fault: one is shown twice, or the finished one as unfinished, or a number is left out."""
    found = preview_steps(steps, partial_images)
    assert found == shown
