"""Pictures are those of diffusers' pipeline, alone and among others that come and go: latents to 1e-5, pixels to one grey level."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.models.easel import Easel, assert_same
from tests.models.qwen_image.drawing import Asked, by_diffusers

MIXED = (
    Asked(steps=5, scale=4.0, negative=" "),
    Asked(prompt="two dogs on a red table", seed=2, steps=3, width=48),
    Asked(prompt="a photo", seed=3, steps=7, scale=2.5, negative="text, objects"),
    Asked(prompt="shape", seed=4, steps=2, joins=1),
    Asked(prompt="a cat and of two dogs", seed=5, steps=6, height=48, scale=1.0, negative="size", joins=2),
    Asked(prompt="a red background", seed=6, steps=4, width=48, scale=6.0, negative=" ", joins=2),
    Asked(prompt="size", seed=7, steps=8, joins=3, leaves_at=4),
    Asked(prompt="texture of the objects", seed=8, steps=2, joins=4, scale=3.0, negative="red"),
)
"""Two tall and two wide pictures have as many tokens as each other: they share batches."""


@pytest.mark.parametrize(
    "asked", [Asked(), Asked(scale=4.0, negative=" "), Asked(height=64, width=40, steps=6, seed=9)]
)
def test_a_picture_alone(easel: Easel, pipeline: Any, asked: Asked) -> None:
    """Fault: any part of the model computes something else."""
    assert_same(easel.draw([asked])[0], by_diffusers(pipeline, asked))


@pytest.mark.parametrize("count", [3, 8])
def test_pictures_of_all_kinds_together(easel: Easel, pipeline: Any, count: int) -> None:
    """Fault: a row is computed at its neighbour's timestep, in its neighbour's place, or reads its neighbour's padding."""
    drawn = easel.draw(MIXED[:count])
    for asked, ours in zip(MIXED, drawn, strict=False):
        if asked.leaves_at is not None:
            assert ours is None
        else:
            assert_same(ours, by_diffusers(pipeline, asked))


def test_previews_change_nothing(easel: Easel) -> None:
    """Fault: showing a picture on its way draws from its noise or moves its solver."""
    plain, seen = easel.draw(MIXED[:2]), easel.draw(MIXED[:2], with_previews=True)
    for one, other in zip(plain, seen, strict=True):
        assert one is not None and other is not None
        assert np.array_equal(one.latents, other.latents) and np.array_equal(one.picture, other.picture)
    last = [preview for preview in easel.previews if preview.shape == (32, 32, 3)][-1]
    assert plain[0] is not None
    assert int(np.abs(last.astype(int) - plain[0].picture.astype(int)).max()) <= 1  # behind the last step is no noise


def test_guidance_is_off_up_to_one(easel: Easel) -> None:
    """Fault: an explicit 0 or 1 is taken for nothing said; a negative prompt is encoded for nothing."""
    for scale in (0.0, 1.0):
        assert len(easel.plan(Asked(scale=scale, negative="red")).conditions) == 1
    assert len(easel.plan(Asked(scale=1.5)).conditions) == 2
    assert easel.plan(Asked(negative="red")).guidance == 4.0


def test_a_seed_draws_what_it_drew(easel: Easel) -> None:
    """Fault: the random stream is shared between pictures."""
    first, again, other = easel.draw([Asked(), Asked(), replace(Asked(), seed=2)])
    assert first is not None and again is not None and other is not None
    assert np.allclose(first.latents, again.latents, atol=1e-5) and not np.allclose(
        first.latents, other.latents, atol=0.1
    )
