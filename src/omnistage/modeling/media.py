"""What is the same of all media that a caller gives, before anything looks into them: raw arrays, files and their sizes. Everything
is refused with the caller's name for it (InvalidRequestError). Knows no torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media


def check_file(media: Media, most_nbytes: int) -> None:
    """A file has some bytes, and not too many. Raw samples and pixels are bounded by their counts."""
    if media.array is None and not 0 < len(media.data) <= most_nbytes:
        accepted = f"1 to {most_nbytes} bytes of an encoded file"
        raise InvalidRequestError.of(media.where, f"{len(media.data)} bytes", accepted)


def raw(media: Media, dtype: type[np.generic], dims: str) -> npt.NDArray[Any]:
    """The array of raw media, read-only. `dims` names its axes in messages, a number is a fixed size: "height, width, 3"."""
    spec = media.array
    assert spec is not None
    wanted = dims.split(", ")
    fits = len(spec.shape) == len(wanted) and spec.dtype == np.dtype(dtype).name
    fits = fits and all(size == int(name) for size, name in zip(spec.shape, wanted, strict=True) if name.isdigit())
    if (
        not fits
        or min(spec.shape, default=0) < 1
        or math.prod(spec.shape) * np.dtype(dtype).itemsize != len(media.data)
    ):
        found = f"{spec.dtype} {list(spec.shape)} in {len(media.data)} bytes"
        raise InvalidRequestError.of(media.where, found, f"{np.dtype(dtype).name} [{dims}], none of them 0")
    return np.frombuffer(media.data, dtype).reshape(spec.shape)


def begin_of(data: bytes) -> str:
    """A file in a message: how long it is, and what tells its kind."""
    return f"{len(data)} bytes that begin with {data[:12]!r}"
