"""What is the same of all media: raw arrays, files, and how they are shown."""

from __future__ import annotations

import numpy as np
import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.core.spec import TensorSpec
from omnistage.modeling.media import begin_of, check_file, raw


def media(data: bytes, array: TensorSpec | None = None) -> Media:
    return Media(kind="audio", data=data, array=array, where="input")


def test_a_file_has_bytes_and_not_too_many() -> None:
    """Fault: a limit that is off by one, or that raw arrays are held to."""
    check_file(media(b"123"), 3)
    check_file(media(b"12345678", TensorSpec("float32", (2,))), 3)
    for data in (b"", b"1234"):
        with pytest.raises(InvalidRequestError, match=f"input: '{len(data)} bytes' .*accepted: 1 to 3 bytes"):
            check_file(media(data), 3)


def test_raw_arrays_are_views_of_their_bytes() -> None:
    """Fault: a copy of every film; an array that reads beyond its bytes."""
    data = np.arange(4, dtype=np.float32).tobytes()
    made = raw(media(data, TensorSpec("float32", (4,))), np.float32, "samples")
    assert made.tolist() == [0, 1, 2, 3] and not made.flags.writeable
    for spec in (
        TensorSpec("float32", (5,)),
        TensorSpec("float32", (2, 2)),
        TensorSpec("int32", (4,)),
        TensorSpec("float32", ()),
    ):
        with pytest.raises(InvalidRequestError, match=r"accepted: float32 \[samples\], none of them 0"):
            raw(media(data, spec), np.float32, "samples")


def test_a_file_is_shown_by_its_begin() -> None:
    """Fault: megabytes in a message."""
    assert begin_of(b"0123456789abcdef") == "16 bytes that begin with b'0123456789ab'"
