"""Pictures are those of diffusers' pipeline, alone and among others that come and go: latents to 1e-5, pixels to one grey level."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.models.easel import Easel, assert_same
from tests.models.flux.drawing import MIXED, Asked, by_diffusers

UNGUIDED = tuple(replace(asked, guidance=None) for asked in MIXED[2:5])


@pytest.mark.parametrize(
    "asked",
    [
        Asked(),
        Asked(scale=3.0, negative="blurry", guidance=1.0),
        Asked(prompt="a fox " * 60, height=64, width=48, steps=3, seed=9, guidance=7.0),
    ],
)
def test_a_picture_alone(dev: Easel, dev_pipeline: Any, asked: Asked) -> None:
    """Fault: any part of the model computes something else; the schedule is not shifted by the picture's size."""
    assert_same(dev.draw([asked])[0], by_diffusers(dev_pipeline, asked))


@pytest.mark.parametrize("asked", [Asked(steps=1), Asked(scale=3.0, negative="blurry", width=64)])
def test_a_picture_of_a_model_without_guidance(schnell: Easel, schnell_pipeline: Any, asked: Asked) -> None:
    """Fault: a schedule is shifted that is not to be; a guidance is embedded that has no weights."""
    assert_same(schnell.draw([asked])[0], by_diffusers(schnell_pipeline, asked))


def test_pictures_of_all_kinds_together(dev: Easel, dev_pipeline: Any) -> None:
    """Fault: a row is computed at its neighbour's timestep or guidance, in its neighbour's place, or of its neighbour's text."""
    _assert_all_same(dev, dev_pipeline, MIXED)


def test_pictures_together_without_guidance(schnell: Easel, schnell_pipeline: Any) -> None:
    _assert_all_same(schnell, schnell_pipeline, UNGUIDED)


def test_previews_change_nothing(dev: Easel) -> None:
    """Fault: showing a picture on its way draws from its noise or moves its solver."""
    (plain,), (seen,) = dev.draw(MIXED[:1]), dev.draw(MIXED[:1], with_previews=True)
    assert plain is not None and seen is not None
    assert np.array_equal(plain.latents, seen.latents) and np.array_equal(plain.picture, seen.picture)
    last = dev.previews[-1]
    assert int(np.abs(last.astype(int) - plain.picture.astype(int)).max()) <= 1  # behind the last step is no noise


def _assert_all_same(easel: Easel, pipeline: Any, asks: tuple[Asked, ...]) -> None:
    for asked, ours in zip(asks, easel.draw(asks), strict=True):
        if asked.leaves_at is not None:
            assert ours is None
        else:
            assert_same(ours, by_diffusers(pipeline, asked))
