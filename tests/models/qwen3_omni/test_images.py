"""Pictures become the patches that transformers makes of them; what is no picture, or too large a one, is refused undecoded."""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.core.spec import TensorSpec
from omnistage.models.qwen3_omni.images import read_image
from omnistage.models.qwen3_omni.limits import MediaLimits
from tests.models.qwen3_omni.files import cuts, encoded_picture, is_refused, item, png_of_size, scrambled
from tests.references.qwen3_omni_cases import MEDIA, PICTURES, PIXELS, media_of, picture

LIMITS = MediaLimits()
ROOM = 10_000


def read(media: Media, limits: MediaLimits = LIMITS, room: int = ROOM) -> Any:
    return read_image(media, PIXELS, limits, room)


@pytest.mark.parametrize("name", PICTURES)
def test_patches_are_those_of_transformers(name: str) -> None:
    """Fault: another size, order of patches or channels, or rounding of colours."""
    wanted = load_file(MEDIA)
    patches, grid = read(media_of("image", PICTURES[name]))
    assert grid == tuple(wanted[f"picture.{name}.grid"])
    frames = patches.reshape(len(patches), 3, PIXELS.temporal_patch_size, -1)
    for frame in range(PIXELS.temporal_patch_size):
        np.testing.assert_allclose(frames[:, :, frame], wanted[f"picture.{name}.values"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("form", ["PNG", "BMP", "WEBP"])
def test_a_file_is_read_as_its_pixels_are(form: str) -> None:
    """Fault: channels in another order, or a file that is decoded to something else."""
    pixels = picture(50, 70)
    data = encoded_picture(pixels, form, **({"lossless": True} if form == "WEBP" else {}))
    assert np.array_equal(read(item("image", data))[0], read(media_of("image", pixels))[0])


def test_a_turned_photograph_stands_upright() -> None:
    """Fault: pictures of phones, which the model sees lying on their side."""
    pixels = picture(40, 80)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    data = encoded_picture(pixels, "PNG", exif=exif)
    assert np.array_equal(read(item("image", data))[0], read(media_of("image", np.rot90(pixels, -1)))[0])


@pytest.mark.parametrize("mode", ["RGBA", "L", "P", "1", "LA", "CMYK"])
def test_other_kinds_of_colour_are_converted(mode: str) -> None:
    """Fault: a picture with transparency or a palette that ends as an error of shapes."""
    form = "JPEG" if mode == "CMYK" else "PNG"
    converted = Image.fromarray(picture(40, 40)).convert(mode)
    buffer = encoded_picture(np.asarray(converted), form) if mode in ("RGBA", "L", "LA") else _saved(converted, form)
    patches, grid = read(item("image", buffer))
    assert grid == (1, 2, 2) and patches.shape == (4, 1536)


def _saved(converted: Image.Image, form: str) -> bytes:
    buffer = io.BytesIO()
    converted.save(buffer, form)
    return buffer.getvalue()


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 200), (200, 1), (2, 3)])
def test_the_smallest_pictures_are_read(height: int, width: int) -> None:
    """Fault: a side that is rounded to nothing."""
    patches, grid = read(media_of("image", picture(height, width)))
    assert len(patches) == np.prod(grid) >= 4


def test_a_header_that_claims_a_huge_picture_is_refused_at_once() -> None:
    """Fault: memory for ten thousand million pixels, taken before anybody asks."""
    begun = time.process_time()
    with pytest.raises(InvalidRequestError, match=r"content\[0\].image: .*pixels.* accepted: at most 67108864 pixels"):
        read(item("image", png_of_size(100_000, 100_000)))
    with pytest.raises(InvalidRequestError, match=r"10000x9000 pixels.*at most 67108864"):
        read(item("image", png_of_size(10_000, 9_000)))
    assert time.process_time() - begun < 1.0


@pytest.mark.parametrize(
    ("media", "words"),
    [
        (item("image", b""), "'0 bytes' is not accepted; accepted: 1 to"),
        (item("image", b"GIF89a and no more"), "begin with b'GIF89a and .*accepted: a whole picture: PNG, JPEG"),
        (item("image", b"\x00" * 100), "100 bytes that begin with"),
        (item("image", png_of_size(201, 1)), "a longer side of at most 200 times"),
        (item("image", encoded_picture(picture(9, 9), "TIFF")), "accepted: a whole picture"),
        (Media(kind="image", data=b"123", array=TensorSpec("uint8", (1, 1, 4)), where="w"), "height, width, 3"),
        (Media(kind="image", data=b"12", array=TensorSpec("uint8", (1, 1, 3)), where="w"), "in 2 bytes"),
        (Media(kind="image", data=b"", array=TensorSpec("uint8", (0, 1, 3)), where="w"), "none of them 0"),
        (Media(kind="image", data=bytes(12), array=TensorSpec("float32", (1, 1, 3)), where="w"), "float32"),
    ],
)
def test_what_is_no_picture_is_named(media: Media, words: str) -> None:
    """Fault: an error of a library, without the field it came from."""
    with pytest.raises(InvalidRequestError, match=words) as caught:
        read(media)
    assert caught.value.field == media.where


def test_limits_and_room_are_asked_before_decoding() -> None:
    """Fault: a file that is decoded, and then found to be too much."""
    damaged = encoded_picture(picture(64, 64), "PNG")[:-40]
    with pytest.raises(InvalidRequestError, match="'4 tokens' is not accepted; accepted: at most 3"):
        read(item("image", damaged), room=3)
    with pytest.raises(InvalidRequestError, match=r"64x64 pixels.*at most 4000 pixels"):
        read(item("image", damaged), MediaLimits(image_pixels=4000))
    with pytest.raises(InvalidRequestError, match="accepted: 1 to 99 bytes"):
        read(item("image", damaged), MediaLimits(image_nbytes=99))


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_files_that_were_cut_or_scrambled_are_read_or_refused(form: str) -> None:
    """Fault: an error of another kind, which would count as the server's."""
    whole = encoded_picture(picture(60, 80), form)
    assert sum(is_refused(read, item("image", data)) for data in cuts(whole)) >= 16
    for seed in range(20):
        is_refused(read, item("image", scrambled(whole, seed)))
