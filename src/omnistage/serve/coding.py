"""Files inside of JSON: base64, made while it is sent. The one place that knows the library which makes it.

An answer is written with a hole for each file: a byte that no JSON holds, for a text escapes it. Whoever sends the answer fills the
holes piece by piece: as one text the picture of a megapixel would be copied five times, each time into fresh memory, while the
event loop waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pybase64

_HOLE = b"\0"
_PIECE_NBYTES = 48 * 2**10  # a multiple of 3, so that each piece is base64 of its own


def base64_of(data: bytes | memoryview) -> bytes:
    """RFC 4648, with padding."""
    return pybase64.b64encode(data)


def hole(head: str = "") -> msgspec.Raw:
    """A JSON string: `head`, in which nothing is to be escaped, and a place for the base64 of a file."""
    return msgspec.Raw(b'"%b%b"' % (head.encode(), _HOLE))


def url_head(form: str) -> str:
    """How the data: URL of a picture in `form` begins."""
    return f"data:image/{form};base64,"


def filled(text: bytes, files: Sequence[bytes]) -> Iterator[bytes]:
    """`text` with its holes filled by `files`, in order, in pieces of which none is long but the text itself."""
    between = text.split(_HOLE)
    assert len(between) == len(files) + 1, "each file has its hole"
    yield between[0]
    for file, text in zip(files, between[1:], strict=True):
        view = memoryview(file)
        for start in range(0, len(view), _PIECE_NBYTES):
            yield base64_of(view[start : start + _PIECE_NBYTES])
        yield text


def filled_nbytes(text: bytes, files: Sequence[bytes]) -> int:
    """How many bytes `filled` gives."""
    return len(text) - len(files) + sum((len(file) + 2) // 3 * 4 for file in files)
