"""A picture, encoded or raw, as an array. Limits are asked before it is decoded. Knows no models."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.modeling.media import begin_of, check_file, raw

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_ACCEPTED = f"a whole picture: {', '.join(_FORMATS)}"

Picture = npt.NDArray[np.uint8]


def read_picture(
    media: Media,
    *,
    most_nbytes: int,
    most_pixels: int,
    check: Callable[[int, int], None] = lambda height, width: None,
    colours: Literal["RGB", "RGBA"] = "RGB",
) -> Picture:
    """[height, width, channels], the first picture of a file, upright; without opacity what is transparent shows its colour.
    `check(height, width)` may refuse a size before it is decoded. Raises InvalidRequestError."""

    def look(height: int, width: int) -> None:
        if height * width > most_pixels:
            raise InvalidRequestError.of(media.where, f"{width}x{height} pixels", f"at most {most_pixels} pixels")
        check(height, width)

    check_file(media, most_nbytes)
    if media.array is None:
        return _decoded(media, look, colours, most_pixels)
    picture: Picture = raw(media, np.uint8, f"height, width, {len(colours)}")
    look(picture.shape[0], picture.shape[1])
    return picture


def _decoded(media: Media, look: Callable[[int, int], None], colours: str, most_pixels: int) -> Picture:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is tighter
            warnings.filterwarnings(
                "ignore", "Palette images with Transparency"
            )  # opacity goes where nobody asked for it
            with Image.open(io.BytesIO(media.data), formats=_FORMATS) as picture:
                look(picture.height, picture.width)
                upright = ImageOps.exif_transpose(picture)
                return np.asarray((_eight_bits(upright) if colours == "RGB" else upright).convert(colours))
    except InvalidRequestError:
        raise
    except Image.DecompressionBombError as error:
        raise InvalidRequestError.of(media.where, str(error), f"at most {most_pixels} pixels") from None
    except UnidentifiedImageError:  # whose words name an object of ours
        raise InvalidRequestError.of(media.where, begin_of(media.data), _ACCEPTED) from None
    except Exception as error:  # noqa: BLE001 - a wrong file makes the library raise nearly anything
        told = f"{begin_of(media.data)} ({error})"
        raise InvalidRequestError.of(media.where, told, _ACCEPTED) from None


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Of grey in 16 bits the upper ones. Pillow would cut: all but the darkest would be white."""
    return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)) if picture.mode.startswith("I") else picture
