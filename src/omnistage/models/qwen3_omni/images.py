"""A picture, encoded or raw, as the vision encoder reads it. Limits are asked before it is decoded. Knows no prompts."""

from __future__ import annotations

import io
import warnings

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.models.qwen3_omni.limits import MediaLimits, begin_of, check_nbytes, check_rows, raw
from omnistage.models.qwen3_omni.patches import (
    Frames,
    Grid,
    grid_of,
    image_colours,
    is_too_narrow,
    patchify,
    resize,
    rows_of,
)
from omnistage.models.qwen3_omni.settings import Pixels

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_ACCEPTED = f"a whole picture: {', '.join(_FORMATS)}"


def read_image(media: Media, pixels: Pixels, limits: MediaLimits, room: int) -> tuple[npt.NDArray[np.float32], Grid]:
    """Patches [patches, values] and their grid. `room`: rows of the prompt that are left. Raises InvalidRequestError."""
    check_nbytes(media, limits)
    if media.array is not None:
        picture = raw(media, np.uint8, "height, width, 3")
        _check_size(media, picture.shape[0], picture.shape[1], pixels, limits, room)
    else:
        picture = _decoded(media, pixels, limits, room)
    grid = grid_of(1, picture.shape[0], picture.shape[1], pixels)
    small = resize(picture, grid[1] * pixels.patch_size, grid[2] * pixels.patch_size)
    return patchify(small[None], image_colours(pixels), pixels), grid


def _decoded(media: Media, pixels: Pixels, limits: MediaLimits, room: int) -> Frames:
    """The first picture of a file, upright, in red, green and blue; what is transparent shows its colour."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is tighter
            with Image.open(io.BytesIO(media.data), formats=_FORMATS) as picture:
                _check_size(media, picture.height, picture.width, pixels, limits, room)
                return np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))
    except InvalidRequestError:
        raise
    except Image.DecompressionBombError as error:
        raise InvalidRequestError.of(media.where, str(error), f"at most {limits.image_pixels} pixels") from None
    except UnidentifiedImageError:  # whose words name an object of ours
        raise InvalidRequestError.of(media.where, begin_of(media.data), _ACCEPTED) from None
    except Exception as error:  # noqa: BLE001 - a wrong file makes the library raise nearly anything
        told = f"{begin_of(media.data)} ({error})"
        raise InvalidRequestError.of(media.where, told, _ACCEPTED) from None


def _check_size(media: Media, height: int, width: int, pixels: Pixels, limits: MediaLimits, room: int) -> None:
    if height * width > limits.image_pixels:
        raise InvalidRequestError.of(media.where, f"{width}x{height} pixels", f"at most {limits.image_pixels} pixels")
    if is_too_narrow(height, width):
        accepted = "a longer side of at most 200 times the shorter one"
        raise InvalidRequestError.of(media.where, f"{width}x{height} pixels", accepted)
    check_rows(media, rows_of(grid_of(1, height, width, pixels), pixels), room)
