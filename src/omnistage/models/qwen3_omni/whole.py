"""How long a media file says it is: libraries read one that was cut as if it were a shorter one. Knows no media."""

from __future__ import annotations

MP4_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide")
"""Names of boxes with which a file begins."""
_UNKNOWN_RIFF = (0, 0x7FFFFFFF, 0xFFFFFFFF)  # what a writer that cannot go back leaves
_EBML, _SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
_BOX_NBYTES, _LARGE_BOX_NBYTES = 8, 16


def stated_nbytes(data: bytes) -> int | None:
    """Of RIFF (WAV, AVI, WebP), AIFF, Matroska (WebM) and MP4 (MOV, M4A); None where nothing is said. A file that is no longer
    than this has its end; what may follow is not counted."""
    if data[:4] == b"RIFF":
        stated = int.from_bytes(data[4:8], "little")
        return None if stated in _UNKNOWN_RIFF else stated + 8
    if data[:4] == b"FORM":
        return int.from_bytes(data[4:8], "big") + 8
    if data[:4] == _EBML:
        return _matroska_nbytes(data)
    return _boxes_nbytes(data) if data[4:8] in MP4_BOXES else None


def _matroska_nbytes(data: bytes) -> int | None:
    header, at = _number(data, 4)
    if header is None or data[at + header : at + header + 4] != _SEGMENT:
        return None
    size, begin = _number(data, at + header + 4)
    return None if size is None else begin + size


def _number(data: bytes, at: int) -> tuple[int | None, int]:
    """EBML's integer of variable length at `at`, and where it ends; None for the one that stands for "unknown"."""
    first = data[at] if at < len(data) else 0
    length = 9 - first.bit_length()
    bits = 7 * length
    value = int.from_bytes(data[at : at + length], "big") & ((1 << bits) - 1)
    return (None if not first or value == (1 << bits) - 1 else value), at + length


def _boxes_nbytes(data: bytes) -> int:
    """Boxes follow each other from the first byte on: four bytes of size, four of name; size 1: eight more bytes, 0: to the end."""
    at = 0
    while at + _BOX_NBYTES <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if size == 1:
            size = int.from_bytes(data[at + _BOX_NBYTES : at + _LARGE_BOX_NBYTES], "big")
        if size < _BOX_NBYTES:
            return len(data)
        at += size
    return at
