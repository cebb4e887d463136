"""Pictures become arrays with the channels that were asked for, and sizes are asked before they are decoded; more of it, file by
file, is in tests/models/qwen3_omni/test_images.py."""

from __future__ import annotations

import io
import warnings
from typing import Literal

import numpy as np
import pytest
from PIL import Image

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.core.spec import TensorSpec
from omnistage.modeling.pictures import read_picture

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 4), np.uint8)


def encoded(pixels: np.ndarray) -> Media:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return Media(kind="image", data=buffer.getvalue(), where="image")


def test_opacity_is_kept_where_it_is_asked_for() -> None:
    """Fault: the transparent part of a mask is lost, or colours are mixed with what lies behind them."""

    def read(media: Media, colours: Literal["RGB", "RGBA"] = "RGB") -> np.ndarray:
        return read_picture(media, most_nbytes=10_000, most_pixels=35, colours=colours)

    assert np.array_equal(read(encoded(PIXELS), "RGBA"), PIXELS)
    assert np.array_equal(read(encoded(PIXELS)), PIXELS[:, :, :3])
    whole = Media(kind="mask", data=PIXELS.tobytes(), array=TensorSpec("uint8", (5, 7, 4)), where="mask")
    assert np.array_equal(read(whole, "RGBA"), PIXELS)
    with pytest.raises(InvalidRequestError, match=r"mask: .*accepted: uint8 \[height, width, 3\]"):
        read(whole)


def test_a_palette_with_opacity_is_read_without_a_word() -> None:
    """Fault: a warning of a library in the log, for a file that is right."""
    buffer = io.BytesIO()
    palette = Image.fromarray(PIXELS[:, :, :3]).convert("P")
    palette.save(buffer, "PNG", transparency=bytes(range(256)))
    media = Media(kind="image", data=buffer.getvalue(), where="image")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = read_picture(media, most_nbytes=10_000, most_pixels=35)
    assert np.array_equal(read, np.asarray(palette.convert("RGB")))


def test_grey_in_sixteen_bits_is_grey() -> None:
    """Fault: all but the darkest of it is white, as the library cuts where it should scale."""
    levels = np.array([[0, 255, 256, 0x1234, 0x8000, 0xFFFF]], np.uint16)
    read = read_picture(encoded(levels), most_nbytes=10_000, most_pixels=35)
    assert read[0].tolist() == [[level >> 8] * 3 for level in levels[0].tolist()]


def test_sizes_are_asked_before_decoding() -> None:
    """Fault: a file is decoded, and then found to be too large or of a size that somebody refuses."""
    broken = Media(kind="image", data=encoded(PIXELS).data[:-20], where="image")

    def refuse(height: int, width: int) -> None:
        raise InvalidRequestError.of("image", (height, width), "another")

    with pytest.raises(InvalidRequestError, match=r"7x5 pixels.*at most 34 pixels"):
        read_picture(broken, most_nbytes=10_000, most_pixels=34)
    with pytest.raises(InvalidRequestError, match=r"\(5, 7\).*accepted: another"):
        read_picture(broken, most_nbytes=10_000, most_pixels=35, check=refuse)
