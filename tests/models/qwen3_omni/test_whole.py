"""How long files say they are."""

from __future__ import annotations

import pytest

from omnistage.models.qwen3_omni.whole import stated_nbytes
from tests.models.qwen3_omni.files import encoded_sound, encoded_video
from tests.references.qwen3_omni_cases import film, noise


@pytest.mark.parametrize("form", ["WAV", "AIFF"])
def test_sounds_say_where_they_end(form: str) -> None:
    """Fault: a file that was cut and is read as a shorter one."""
    data = encoded_sound(noise(1000), 16_000, form)
    assert stated_nbytes(data) == stated_nbytes(data[:100]) == len(data)


@pytest.mark.parametrize("form", ["mp4", "matroska", "avi"])
def test_videos_say_where_they_end(form: str) -> None:
    """Fault: the same, for containers whose parts say how long they are."""
    data = encoded_video(film(10, 32, 32), form=form)
    assert stated_nbytes(data) == len(data)
    cut = stated_nbytes(data[: len(data) * 3 // 4])
    assert cut is not None and cut > len(data) * 3 // 4


def test_what_is_written_in_one_pass_says_nothing() -> None:
    """Fault: recordings of browsers and of live streams, refused because their length is not known."""
    data = bytearray(encoded_sound(noise(1000), 16_000, "WAV"))
    data[4:8] = b"\xff\xff\xff\xff"
    assert stated_nbytes(bytes(data)) is None
    data = bytearray(encoded_video(film(4, 32, 32), form="matroska"))
    at = data.index(b"\x18S\x80g")
    assert data[at + 4] == 0x01  # eight bytes of size
    data[at + 4 : at + 12] = b"\x01" + b"\xff" * 7
    assert stated_nbytes(bytes(data)) is None


@pytest.mark.parametrize(
    "data", [b"", b"RIFF", b"\x1aE\xdf\xa3", b"OggS and more", b"\x00\x00\x00\x02ftyp", b"\x00" * 40]
)
def test_scraps_are_no_trouble(data: bytes) -> None:
    """Fault: an index beyond the end, or a walk over boxes that never ends."""
    assert stated_nbytes(data) in (None, 8, len(data))
