"""What is asked of media before anything looks into them."""

from __future__ import annotations

import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.core.spec import TensorSpec
from omnistage.models.qwen3_omni.limits import MediaLimits, check_end, check_nbytes, check_rows


def media(data: bytes, array: TensorSpec | None = None) -> Media:
    return Media(kind="audio", data=data, array=array, where="input")


def test_files_have_bytes_and_not_too_many() -> None:
    """Fault: a limit that is off by one, or that raw samples are held to."""
    limits = MediaLimits(audio_nbytes=3)
    check_nbytes(media(b"123"), limits)
    check_nbytes(media(b"12345678", TensorSpec("float32", (2,))), limits)
    for data in (b"", b"1234"):
        with pytest.raises(
            InvalidRequestError, match=f"input: '{len(data)} bytes' is not accepted; accepted: 1 to 3 bytes"
        ):
            check_nbytes(media(data), limits)
    assert [MediaLimits().nbytes(kind) for kind in ("image", "audio", "video")] == [2**26, 2**28, 2**29]


def test_rows_fit_or_are_counted() -> None:
    """Fault: the last row of a prompt that is refused."""
    check_rows(media(b""), 5, 5)
    with pytest.raises(InvalidRequestError, match="'6 tokens' is not accepted; accepted: at most 5"):
        check_rows(media(b""), 6, 5)


def test_a_cut_file_is_named_by_its_length() -> None:
    """Fault: an odd file refused for the byte that its writer counts to make it even."""
    head = b"RIFF" + (100).to_bytes(4, "little")
    check_end(media(head.ljust(108)))
    check_end(media(head.ljust(107)))
    check_end(media(head.ljust(200)))
    check_end(media(b"something else"))
    with pytest.raises(
        InvalidRequestError, match="'106 bytes of a file of 108' is not accepted; accepted: a whole file"
    ):
        check_end(media(head.ljust(106)))
