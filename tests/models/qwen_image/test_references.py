"""Pictures to be changed come at the sizes that the model works at; masks are as large as the first, and become latents."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.modeling.patches import Pixels
from omnistage.models.qwen_image.references import digest, read_mask, read_references, sides
from tests.models.qwen_image.drawing import as_media
from tests.models.qwen_image.editing import photograph

PIXELS = Pixels(14, 2, 2, 56 * 56, 28 * 28 * 1280, (0.5,) * 3, (0.5,) * 3, 1 / 255)


def test_sides_keep_area_and_shape() -> None:
    """Fault: height and width change places; a side between two tokens."""
    assert sides(1024 * 1024, 500, 500) == (1024, 1024)
    assert sides(1024 * 1024, 480, 640) == (896, 1184)
    assert sides(384 * 384, 1, 200) == (32, 5440)


def test_a_picture_is_seen_at_another_size() -> None:
    """Fault: the text encoder sees what the autoencoder gets, or the other way round."""
    (one,) = read_references([as_media(photograph(50, 100))], PIXELS, 64 * 64)
    assert one.whole.shape == (736, 1440, 3) and one.seen.shape == (56, 112, 3)
    (same,) = read_references([as_media(photograph(50, 100))], PIXELS, None)
    assert same.seen.shape == (700, 1400, 3)
    assert digest([one]) != digest([same]) and digest([one, same]) != digest([same, one])


def test_narrow_pictures_and_broken_ones_are_refused() -> None:
    """Fault: a side of nothing; an error without the caller's name for the picture."""
    with pytest.raises(InvalidRequestError, match=r"image\[1\]: '201x1 pixels' .*at most 200 times"):
        read_references(
            [as_media(photograph(9, 9)), as_media(np.zeros((1, 201, 3), np.uint8), "image[1]")], PIXELS, None
        )
    broken = msgspec.structs.replace(as_media(photograph(9, 9)), data=b"\x89PNG nothing", array=None)
    with pytest.raises(InvalidRequestError, match=r"image: .*accepted: a whole picture"):
        read_references([broken], PIXELS, None)


def test_a_mask_is_one_where_it_is_transparent() -> None:
    """Fault: what is opaque is drawn; a half is rounded to the other side; a mask of another size is stretched."""
    picture = as_media(photograph(32, 64))
    found = np.full((32, 64, 4), 255, np.uint8)
    found[:16, :, 3] = 0
    found[16:, :32, 3] = 100
    made = read_mask(as_media(found, "mask", "mask"), picture, (32, 64), 8)
    assert made.tolist() == [[1] * 8] * 2 + [[1] * 4 + [0] * 4] * 2
    with pytest.raises(
        InvalidRequestError, match="mask: '64x31 pixels' is not accepted; accepted: 64x32 pixels, as the first"
    ):
        read_mask(as_media(found[:31], "mask", "mask"), picture, (32, 64), 8)
