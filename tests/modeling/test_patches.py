"""Sizes, colours and the order of patches by hand; test_images.py and test_video.py compare with transformers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from omnistage.modeling.patches import (
    grid_of,
    image_colours,
    is_too_narrow,
    patchify,
    resize,
    resize_frame,
    resized,
    rows_of,
    video_colours,
)
from tests.references.qwen3_omni_cases import PIXELS, film, picture

PLAIN = replace(PIXELS, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), scale=1.0)


@pytest.mark.parametrize(
    ("sides", "wanted"),
    [
        ((64, 64), (64, 64)),
        ((1, 1), (32, 32)),
        ((16, 16), (32, 32)),
        ((48, 80), (64, 64)),
        ((500, 33), (224, 32)),
        ((1, 200), (32, 480)),
    ],
)
def test_sides_become_multiples_within_bounds(sides: tuple[int, int], wanted: tuple[int, int]) -> None:
    """Fault: a picture larger than is allowed, or one with a side of nothing. Halves are rounded to even."""
    assert resized(*sides, PIXELS) == wanted
    tall, wide = wanted
    assert grid_of(3, *sides, PIXELS) == (2, tall // 16, wide // 16)
    assert rows_of(grid_of(3, *sides, PIXELS), PIXELS) == 2 * tall * wide // 1024


def test_the_narrowest_picture_is_two_hundred_times_as_long_as_wide() -> None:
    """Fault: a border that lies elsewhere than transformers' own."""
    assert not is_too_narrow(1, 200) and not is_too_narrow(400, 2)
    assert is_too_narrow(1, 201) and is_too_narrow(401, 2)


def test_every_value_stands_in_its_place() -> None:
    """Fault: patches line by line over the whole picture, colours last, or frames outside."""
    frames = film(4, 64, 96)
    colours = np.tile(np.arange(256, dtype=np.float32), (3, 1)) + np.array([[0], [1000], [2000]], np.float32)
    made = patchify(frames, colours, PLAIN)
    assert made.shape == (2 * 4 * 6, 3 * 2 * 16 * 16)
    values = made.reshape(2, 2, 3, 2, 2, 3, 2, 16, 16)  # times, rows down, across, down, across, colour, frame, y, x
    for time, down, across, y, x, colour, frame in np.ndindex(2, 2, 3, 2, 2, 3, 2):
        top, left = (down * 2 + y) * 16, (across * 2 + x) * 16
        cut = frames[time * 2 + frame, top : top + 16, left : left + 16, colour]
        assert np.array_equal(values[time, down, across, y, x, colour, frame], cut + 1000.0 * colour)


def test_the_last_frame_is_repeated() -> None:
    """Fault: a film of three frames that loses one, or shows black."""
    frames = film(3, 32, 32)
    assert np.array_equal(
        patchify(frames, image_colours(PLAIN), PLAIN),
        patchify(np.concatenate([frames, frames[2:]]), image_colours(PLAIN), PLAIN),
    )


def test_colours_are_rescaled_and_normalised() -> None:
    """Fault: the mean of one channel for all; a table that is off by one level."""
    for made in (image_colours(PIXELS), video_colours(PIXELS)):
        assert made.shape == (3, 256) and made.dtype == np.float32
        for channel in range(3):
            wanted = (np.arange(256) / 255 - PIXELS.mean[channel]) / PIXELS.std[channel]
            np.testing.assert_allclose(made[channel], wanted, atol=2e-6)


def test_a_frame_is_resized_across_before_down() -> None:
    """Fault: the order that Pillow chooses for what grows across and shrinks down; for all others both are the same."""
    steady = picture(70, 50)
    assert resize_frame(steady, 64, 32).shape == resize(steady, 64, 32).shape == (64, 32, 3)
    assert np.array_equal(resize_frame(steady, 80, 32), resize(steady, 80, 32))
    rough = np.random.default_rng(0).integers(0, 256, (70, 50, 3)).astype(np.uint8)
    assert np.array_equal(resize_frame(rough, 64, 64), resize(resize(rough, 70, 64), 64, 64))
