"""Pictures to bytes, and how large pictures are that came as bytes. Arrays are uint8 [height, width, channels], 3 channels or 4
with opacity.

Encoding takes up to a second, so routes call `all_encoded`, which does it in threads: Pillow lets others run meanwhile. Of a file
that came nothing is decoded but its head; whoever draws decodes it, within bounds.
"""

from __future__ import annotations

import asyncio
import io
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media

FORMATS = ("png", "jpeg", "webp")
READ = ("PNG", "JPEG", "WEBP")
_ORIENTATION, _LYING = 0x0112, 5  # the tag, and the first of its values that mean a picture on its side
_WEBP_METHOD = 0  # 0 to 6: the others take two to five times as long for a tenth fewer bytes
_WHITE = (255, 255, 255)

Pixels = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class PictureFormat:
    """`name` is one of FORMATS. `quality`, of jpeg and webp: 0 to 100, of which 100 is the largest file. `opaque`: what can be seen
    through is laid on white."""

    name: str = "png"
    quality: int = 100
    opaque: bool = False


PNG = PictureFormat()
_ENCODERS = ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) - 1), "encoder")


def encoded(pixels: Pixels, form: PictureFormat) -> bytes:
    """A whole file."""
    picture = Image.fromarray(pixels)
    if picture.mode == "RGBA" and (form.opaque or form.name == "jpeg"):
        ground = Image.new("RGB", picture.size, _WHITE)
        ground.paste(picture, mask=picture)
        picture = ground
    file = io.BytesIO()
    match form.name:
        case "png":
            # Runs alone, without a search for longer matches: of a photograph or a painting, whose filtered lines repeat
            # nothing else, half the time of the default level for as many bytes.
            picture.save(file, "PNG", compress_level=1, compress_type=zlib.Z_RLE)
        case "jpeg":
            picture.save(file, "JPEG", quality=form.quality)
        case _:
            picture.save(file, "WEBP", quality=form.quality, method=_WEBP_METHOD)
    return file.getvalue()


async def all_encoded(pictures: Sequence[Pixels], form: PictureFormat = PNG) -> list[bytes]:
    """Whole files, in order, made in threads: over all requests as many at a time as there are cores but one, which stays with the
    event loop."""
    loop = asyncio.get_running_loop()
    return list(await asyncio.gather(*(loop.run_in_executor(_ENCODERS, encoded, pixels, form) for pixels in pictures)))


def require_readable(media: Sequence[Media]) -> None:
    """Raises InvalidRequestError, naming `where`, for what is no picture or is cut, as far as the parts of its file tell it, and
    for a mask that has no opacity or another size than the first image."""
    sizes: dict[str, tuple[int, int]] = {}
    for found in media:
        size = _size(found)
        if found.kind == "mask" and size != sizes["image"]:
            accepted = "{}x{}, as the first image has".format(*sizes["image"])
            raise InvalidRequestError.of(found.where, "{}x{}".format(*size), accepted)
        sizes.setdefault(found.kind, size)


def _size(found: Media) -> tuple[int, int]:
    """(width, height), upright."""
    try:
        with Image.open(io.BytesIO(found.data), formats=READ) as picture:
            size, can_be_seen_through = _upright(picture), picture.has_transparency_data
            picture.verify()  # the checksums of a PNG, to its end
    except Exception as error:  # noqa: BLE001 - whatever becomes of a stranger's bytes is their fault
        why = str(error).partition(" <")[0]
        raise _refused(found, f"cannot be read ({why})", f"a whole picture ({', '.join(READ)})") from None
    if found.kind == "mask" and not can_be_seen_through:
        raise _refused(found, "has no opacity", "a PNG or WebP that can be seen through where the image is to change")
    return size


def _upright(picture: Image.Image) -> tuple[int, int]:
    """As a camera held it. Of a PNG it is asked only where it stands before the pixels: Pillow would decode it for the answer."""
    tells = picture.format != "PNG" or "exif" in picture.info
    turned = tells and picture.getexif().get(_ORIENTATION, 1) >= _LYING
    return (picture.height, picture.width) if turned else picture.size


def _refused(found: Media, why: str, accepted: str) -> InvalidRequestError:
    return InvalidRequestError(f"{found.where}: {why}; accepted: {accepted}", field=found.where)
