"""Files that travel as text: base64 and `data:` URLs, and what they are declared to be.

What is declared is checked as far as a kind of media and a container's first bytes tell it; nobody decodes a file here. Base64 is
decoded in pieces: megabytes at once would keep every other thread waiting. Knows nothing of prompts and of where a text came from.
"""

from __future__ import annotations

import binascii
import urllib.parse
from typing import Literal

from omnistage.core.errors import InvalidRequestError, shortened

MediaKind = Literal["image", "mask", "audio", "video"]

AUDIO_FORMATS = ("wav", "mp3", "flac", "ogg", "opus")
"""What the `format` of an `input_audio` can be."""

TYPES: dict[MediaKind, tuple[str, ...]] = {
    "image": ("image/",),
    "mask": ("image/",),
    "audio": ("audio/", "video/"),
    "video": ("video/",),
}
"""How the media types of a kind begin; many a sound comes in a container that is called a video."""

_UNTOLD = ("", "application/octet-stream", "binary/octet-stream", "application/ogg", "application/mp4")
_LONGEST_HEAD = 256
_PIECE_CHARS = 2**20  # a multiple of 4, so that each piece is base64 of its own
_BASE64 = "base64 (RFC 4648, with padding)"


def decoded(text: str, where: str, most_nbytes: int) -> bytes:
    """The bytes that base64 stands for. Raises InvalidRequestError that names `where` for anything else, for none, and for more
    than `most_nbytes`, before those are made."""
    padding = text.find("=")
    if len(text) % 4 or padding not in (-1, len(text) - 1, len(text) - 2):
        raise _refused(where, text, _BASE64)
    require_size(len(text) // 4 * 3 - 2, where, most_nbytes)
    data = bytearray()
    try:
        for start in range(0, len(text), _PIECE_CHARS):
            data += binascii.a2b_base64(text[start : start + _PIECE_CHARS], strict_mode=True)
    except ValueError as error:  # binascii.Error is one; so is what a character beyond ASCII raises
        raise _refused(where, text, f"{_BASE64}; {error}") from None
    require_size(len(data), where, most_nbytes)
    return bytes(data)


def data_of_url(kind: MediaKind, url: str, where: str, most_nbytes: int) -> bytes:
    """The bytes of a `data:` URL of this kind of media. Raises InvalidRequestError, as `decoded` does."""
    end = url.find(",", 0, _LONGEST_HEAD)
    head = url[len("data:") : end].split(";") if end >= 0 else []
    if len(head) < 2 or head[-1].strip().lower() != "base64":
        raise _refused(where, url, "data:TYPE;base64,DATA")
    require_type(kind, head[0], where)
    text = url[end + 1 :]
    return decoded(urllib.parse.unquote(text) if "%" in text else text, where, most_nbytes)


def require_type(kind: MediaKind, media_type: str, where: str) -> None:
    """Raises InvalidRequestError for a media type ("image/png; x=y") that says it is of another kind. One that says nothing is left
    to whoever reads the bytes."""
    told = media_type.partition(";")[0].strip().lower()
    if told not in _UNTOLD and not told.startswith(TYPES[kind]):
        raise _refused(where, told, f"{' or '.join(f'{begin}*' for begin in TYPES[kind])}")


def require_format(data: bytes, declared: object, where: str) -> None:
    """Raises InvalidRequestError for a format of audio that is none, and for one that the file's first bytes belie."""
    if declared not in AUDIO_FORMATS:
        raise InvalidRequestError.of(where, declared, f"one of {', '.join(AUDIO_FORMATS)}")
    found = _container(data)
    if found is not None and declared not in found:
        raise InvalidRequestError.of(where, declared, f"{' or '.join(found)}, as the data are")


def require_size(nbytes: int, where: str, most_nbytes: int) -> None:
    """Raises InvalidRequestError for more than `most_nbytes`."""
    if nbytes > most_nbytes:
        told = f"{nbytes} bytes are not accepted"
        raise InvalidRequestError(f"{where}: {told}; accepted: at most {most_nbytes} bytes here", field=where)


def _container(data: bytes) -> tuple[str, ...] | None:
    """The formats that have this beginning; None where it tells nothing."""
    match data[:4]:
        case b"RIFF":
            return ("wav",)
        case b"fLaC":
            return ("flac",)
        case b"OggS":
            return ("ogg", "opus")
        case head if head[:3] == b"ID3" or (head[:1] == b"\xff" and head[1:2] and head[1] & 0xE6 == 0xE2):
            return ("mp3",)
    return None


def _refused(where: str, value: str, accepted: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where}: {shortened(value)!r} is not accepted; accepted: {accepted}", field=where)
