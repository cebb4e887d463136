"""When unfinished pictures are shown, and what time the model takes for a request."""

from __future__ import annotations

import pytest

from omnistage.stages.diffusion.requests import covered_s, preview_steps


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


@pytest.mark.parametrize(
    ("spans", "covered"),
    [
        ([], 0.0),
        ([(1.0, 2.0), (3.0, 5.0)], 3.0),
        ([(1.0, 4.0), (2.0, 3.0), (3.5, 6.0)], 5.0),
        ([(3.0, 4.0), (1.0, 3.5)], 3.0),
        ([(-2.0, -1.0), (-1.0, 1.5)], 0.5),
    ],
)
def test_calls_beside_each_other_count_once(spans: list[tuple[float, float]], covered: float) -> None:
    """Fault: a request spends more time in the model than it runs: one of its pictures is decoded while another takes a step,
    or because its prompt was encoded before."""
    assert covered_s(spans, 1.0) == covered
