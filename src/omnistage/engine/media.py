"""The media of a prompt: from what a caller has (files, arrays, pictures, URLs) to bytes with a name.

`read_given` takes what is at hand; `read_local`, for programs and command lines, opens this machine's files too. A server reads
URLs by a reader of its own. Nothing is decoded here: that is the work of the entry stage's processor. `GatheredState` holds the
bounds, which are the same for all of them: so many media a prompt, and so many bytes together. How many bytes all prompts may
have stands here too.
"""

from __future__ import annotations

import math
import os
import sys
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from omnistage.core.errors import InvalidRequestError, shortened
from omnistage.core.request import Media
from omnistage.core.spec import TensorSpec
from omnistage.engine.encoded import MediaKind, data_of_url, decoded, require_format, require_size

Array = np.ndarray[Any, Any]

MOST_MEDIA = 64
"""In one prompt."""
MOST_OPEN_NBYTES = 2**30
"""What the media of open requests may have when another one with media begins. They are held until their request has ended."""

_SHAPES: dict[MediaKind, str] = {
    "image": "a uint8 array [height, width, 3], or a PIL image",
    "mask": "a uint8 array [height, width, 4], or a PIL image with opacity",
    "audio": "an array [samples] of floats or int16, of one channel, or (array, Hz)",
    "video": "a uint8 array [frames, height, width, 3], (array, frames per second), or a list of pictures",
}
_DIMENSIONS: dict[MediaKind, int] = {"image": 3, "mask": 3, "audio": 1, "video": 4}


@dataclass(frozen=True, slots=True)
class MediaValue:
    """A value that stands at `where` in a prompt and is to become media. `declared` is the format of a text that is bare base64.
    No more than `most_nbytes` are to come of it."""

    kind: MediaKind
    value: object
    where: str
    most_nbytes: int
    declared: object = None

    @property
    def told(self) -> str:
        """The value in few words."""
        return told_of(self.value)

    def refusal(self, accepted: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self.where}: {self.told} is not accepted; accepted: {accepted}", field=self.where)


MediaReader = Callable[[MediaValue], Media]
"""Raises InvalidRequestError, naming `where`, for what it cannot read."""


@runtime_checkable
class _ArrayLike(Protocol):
    """numpy's own, and other libraries' arrays on the host."""

    def __array__(self) -> Array: ...


class GatheredState:
    """The media of one prompt, in order: at most MOST_MEDIA, and `most_nbytes` together."""

    def __init__(self, read: MediaReader, most_nbytes: int) -> None:
        self._read = read
        self._most_nbytes = most_nbytes
        self._media: list[Media] = []

    @property
    def media(self) -> tuple[Media, ...]:
        return tuple(self._media)

    def add(self, kind: MediaKind, value: object, where: str, declared: object = None) -> int:
        """The index of what becomes of `value`. Raises InvalidRequestError, also for one too many."""
        if len(self._media) == MOST_MEDIA:
            raise InvalidRequestError(f"{where}: more than {MOST_MEDIA} images, sounds and videos", field=where)
        left = self._most_nbytes - sum(len(media.data) for media in self._media)
        read = self._read(MediaValue(kind, value, where, left, declared))
        require_size(len(read.data), where, left)
        self._media.append(read)
        return len(self._media) - 1


def read_given(found: MediaValue) -> Media:
    """Out of what is in memory: encoded bytes, base64 and `data:` URLs, arrays, PIL's pictures."""
    match found.value:
        case Media(kind=kind) as media if kind == found.kind:
            return media
        case bytes() | bytearray() | memoryview() as data:
            return encoded(found, data)
        case str() as text if found.declared is not None:
            data = decoded(text, found.where, found.most_nbytes)
            require_format(data, found.declared, f"{found.where.rpartition('.')[0]}.format")
            return encoded(found, data)
        case str() as text if scheme_of(text) == "data":
            return encoded(found, data_of_url(found.kind, text, found.where, found.most_nbytes))
        case tuple() as pair if len(pair) == 2:
            return _raw(found, *pair)
        case array if is_picture(array) or isinstance(array, _ArrayLike) or is_frames(array):
            return _raw(found, array, None)
    raise found.refusal(f"bytes of a file, a data: URL, {_SHAPES[found.kind]}")


def read_local(found: MediaValue) -> Media:
    """As `read_given`, and files: a path (str or Path) or a `file:` URL."""
    match found.value:
        case Path() as path:
            return encoded(found, _file(found, path))
        case str() as text if found.declared is None and scheme_of(text) == "file":
            return encoded(found, _file(found, path_of_url(found)))
        case str() as text if found.declared is None and scheme_of(text) in ("http", "https"):
            raise found.refusal("a file of this machine or a data: URL; nothing is fetched from other hosts here")
        case str() as text if found.declared is None and scheme_of(text) != "data":
            return encoded(found, _file(found, Path(text)))
    return read_given(found)


def encoded(found: MediaValue, data: bytes | bytearray | memoryview) -> Media:
    """A file's bytes, of which there must be some."""
    if not len(data):
        raise InvalidRequestError(f"{found.where}: is empty; accepted: an encoded {found.kind}", field=found.where)
    return Media(kind=found.kind, data=bytes(data), where=found.where)


def scheme_of(text: str) -> str:
    """Of a URL, in lower case; "" for what has none. A single letter is none: that is how some paths begin."""
    scheme, colon, _ = text[:32].partition(":")
    return scheme.lower() if colon and len(scheme) > 1 and scheme.isascii() and scheme[0].isalpha() else ""


def path_of_url(found: MediaValue) -> Path:
    """The path of a `file:` URL. Raises InvalidRequestError for one of another host."""
    url = urllib.parse.urlsplit(str(found.value))
    path = urllib.parse.unquote(url.path)
    if url.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise found.refusal("file:///PATH")
    return Path(path)


def is_picture(value: object) -> bool:
    """True for PIL's pictures. Who has none has not imported it, and it is not imported to ask."""
    library = sys.modules.get("PIL.Image")
    return library is not None and isinstance(value, library.Image)


def is_frames(values: object) -> bool:
    """True for a list of pictures, which make one video."""
    return (
        isinstance(values, list)
        and bool(values)
        and all(is_picture(value) or (isinstance(value, np.ndarray) and value.ndim == 3) for value in values)
    )


def told_of(value: object) -> str:
    """A value in few words: of megabytes only how many they are."""
    match value:
        case str() | Path() as text:
            return repr(shortened(str(text)))
        case bytes() | bytearray() | memoryview():
            return f"{type(value).__name__} of {len(value)} bytes"
        case np.ndarray():
            return f"an array {list(value.shape)} of {value.dtype}"
    return shortened(repr(value)) if isinstance(value, int | float | None) else f"a {type(value).__name__}"


def _file(found: MediaValue, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            require_size(os.fstat(file.fileno()).st_size, found.where, found.most_nbytes)
            data = file.read(found.most_nbytes + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise found.refusal(f"a file that can be read ({why})") from None
    require_size(len(data), found.where, found.most_nbytes)
    return data


def _raw(found: MediaValue, value: object, rate: object) -> Media:
    """Raises InvalidRequestError for another shape or dtype than the kind's, for no data, and for a rate that is none."""
    array = _array(found.kind, value)
    if array is None:
        raise found.refusal(_SHAPES[found.kind])
    require_size(array.nbytes, found.where, found.most_nbytes)
    data = np.ascontiguousarray(array).tobytes()
    spec = TensorSpec(array.dtype.name, tuple(array.shape))
    return Media(kind=found.kind, data=data, array=spec, rate=_rate(found, rate), where=found.where)


def _array(kind: MediaKind, value: object) -> Array | None:
    """`value` in the kind's own form; None where it has another."""
    match value:
        case list() if kind == "video":
            frames = [_pixels(frame) for frame in value]
            array = np.stack(frames) if len({frame.shape for frame in frames}) == 1 else None
        case _ if is_picture(value):
            array = _opacity(value) if kind == "mask" else _pixels(value)
        case _ArrayLike():
            array = _samples(np.asarray(value)) if kind == "audio" else np.asarray(value)
        case _:
            array = None
    if array is None or not array.size or array.ndim != _DIMENSIONS[kind]:
        return None
    is_right = kind == "audio" or (array.dtype == np.uint8 and array.shape[-1] == _channels(kind))
    return array if is_right else None


def _channels(kind: MediaKind) -> int:
    return 4 if kind == "mask" else 3


def _opacity(picture: Any) -> Array | None:
    """[height, width, 4] of a PIL picture; None of one that has no opacity, and so marks nothing."""
    return np.asarray(picture.convert("RGBA")) if picture.has_transparency_data else None


def _pixels(value: object) -> Array:
    """[height, width, 3] of a PIL picture in any mode; an array as it is."""
    if is_picture(value):
        picture: Any = value
        return np.asarray(picture.convert("RGB"))
    return np.asarray(value)


def _samples(array: Array) -> Array | None:
    """float32, from floats that are numbers and from 16-bit integers; None for anything else."""
    if array.dtype == np.int16:
        return array.astype(np.float32) / 32768
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        return None
    return array.astype("<f4", copy=False)


def _rate(found: MediaValue, rate: Any) -> float | None:
    is_number = isinstance(rate, int | float | np.integer | np.floating) and not isinstance(rate, bool)
    if rate is None or (is_number and found.kind in ("audio", "video") and 0 < float(rate) < math.inf):
        return None if rate is None else float(rate)
    accepted = {"audio": "a number of Hz > 0", "video": "a number of frames per second > 0"}
    raise InvalidRequestError.of(f"{found.where}[1]", rate, accepted.get(found.kind, "no rate"))
