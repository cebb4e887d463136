"""The pictures that a request gives to be changed, and its mask, as arrays of the sizes that the model works at. Knows no torch.

A picture is read twice: by the autoencoder, at an area of a million pixels, and by the text encoder, which sees patches of it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.modeling.patches import Pixels, check_shape, resize, resized
from omnistage.modeling.pictures import Picture, read_picture

MOST_NBYTES = 64 * 2**20
MOST_PIXELS = 2**26
"""Of one picture, before it is resized."""
REFERENCE_AREA = 1024 * 1024
_SIDES = 32
"""Sides are multiples of it."""
_HALF = 128


@dataclass(frozen=True, slots=True)
class Reference:
    """`whole` [height, width, 3] is for the autoencoder, `seen` for the text encoder's patches."""

    whole: Picture
    seen: Picture


def sides(area: int, height: int, width: int) -> tuple[int, int]:
    """Height and width of about `area` pixels, in the shape of height x width."""
    ratio = width / height
    wide = math.sqrt(area * ratio)
    tall = wide / ratio
    return round(tall / _SIDES) * _SIDES, round(wide / _SIDES) * _SIDES


def read_references(pictures: Sequence[Media], pixels: Pixels, seen_area: int | None) -> list[Reference]:
    """`seen_area`: pixels that the text encoder sees; None: as many as the autoencoder. Raises InvalidRequestError."""
    return [_reference(picture, pixels, seen_area) for picture in pictures]


def _reference(media: Media, pixels: Pixels, seen_area: int | None) -> Reference:
    def check(height: int, width: int) -> None:
        check_shape(media, height, width)

    given = read_picture(media, most_nbytes=MOST_NBYTES, most_pixels=MOST_PIXELS, check=check)
    height, width, _ = given.shape
    whole = _scaled(given, *sides(REFERENCE_AREA, height, width))
    seen = whole if seen_area is None else _scaled(given, *sides(seen_area, height, width))
    tall, wide = resized(seen.shape[0], seen.shape[1], pixels)
    return Reference(whole, resize(seen, tall, wide))


def read_mask(mask: Media, first: Media, size: tuple[int, int], scale: int) -> Picture:
    """[height, width] in latents: 1 where a picture of `size` pixels is to be drawn anew, which is where more than half of what
    lies there is transparent. `scale`: pixels on a side of a latent. Raises InvalidRequestError for a mask that is not as large as
    the picture `first`."""
    wanted = read_picture(first, most_nbytes=MOST_NBYTES, most_pixels=MOST_PIXELS).shape[:2]

    def check(height: int, width: int) -> None:
        if (height, width) != wanted:
            accepted = f"{wanted[1]}x{wanted[0]} pixels, as the first image has"
            raise InvalidRequestError.of(mask.where, f"{width}x{height} pixels", accepted)

    found = read_picture(mask, most_nbytes=MOST_NBYTES, most_pixels=MOST_PIXELS, check=check, colours="RGBA")
    transparent = _scaled(255 - found[:, :, 3], *size)
    return (transparent[::scale, ::scale] >= _HALF).astype(np.uint8)


def digest(references: Sequence[Reference]) -> str:
    """Names what the pictures show, at the sizes at which they are read."""
    hashed = hashlib.blake2b(digest_size=16)
    for reference in references:
        for picture in (reference.whole, reference.seen):
            hashed.update(repr(picture.shape).encode())
            hashed.update(np.ascontiguousarray(picture).data)
    return hashed.hexdigest()


def _scaled(picture: Picture, tall: int, wide: int) -> Picture:
    return np.asarray(Image.fromarray(picture).resize((wide, tall), Image.Resampling.LANCZOS))
