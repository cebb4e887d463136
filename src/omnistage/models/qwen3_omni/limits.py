"""How much a caller's media may be, asked before anything is decoded, and the words in which it is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.models.qwen3_omni.whole import stated_nbytes


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Of one item. Bytes are those of the file, pixels those of a picture or frame before resizing, frames all that a video has.
    `video_work` bounds the pixels of all frames together: what decoding them takes, a minute or less in one thread."""

    image_nbytes: int = 64 * 2**20
    image_pixels: int = 2**26
    audio_nbytes: int = 256 * 2**20
    audio_seconds: float = 3600.0
    video_nbytes: int = 512 * 2**20
    video_pixels: int = 2**25
    video_seconds: float = 3600.0
    video_frames: int = 2**18
    video_work: int = 2**34

    def nbytes(self, kind: str) -> int:
        return {"image": self.image_nbytes, "audio": self.audio_nbytes, "video": self.video_nbytes}[kind]


def check_nbytes(media: Media, limits: MediaLimits) -> None:
    """A file has some bytes, and not too many. Raw samples and pixels are bounded by their counts."""
    most = limits.nbytes(media.kind)
    if media.array is None and not 0 < len(media.data) <= most:
        raise InvalidRequestError.of(media.where, f"{len(media.data)} bytes", f"1 to {most} bytes of an encoded file")


def check_rows(media: Media, rows: int, room: int) -> None:
    """`rows` of the prompt that the item takes; `room`: those that the prompt still has."""
    if rows > room:
        raise InvalidRequestError.of(
            media.where, f"{rows} tokens", f"at most {room}, what the prompt has left (max_model_len)"
        )


def check_end(media: Media) -> None:
    """A file has its end, as far as it says where that is. Writers differ by the byte that makes a length even."""
    stated = stated_nbytes(media.data)
    if stated is not None and stated > len(media.data) + 1:
        raise InvalidRequestError.of(media.where, f"{len(media.data)} bytes of a file of {stated}", "a whole file")


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
