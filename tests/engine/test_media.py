"""From files, arrays and pictures to media with a name.

Faults pinned: an array in another layout is taken for the right one; values change on the way; a path is opened where no file may
be; a bound counts each item alone.
"""

import base64
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.core.spec import TensorSpec
from omnistage.engine.encoded import MediaKind
from omnistage.engine.media import MOST_MEDIA, GatheredState, MediaValue, read_given, read_local, scheme_of, told_of

PIXELS = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
SAMPLES = np.array([0.0, 0.5, -1.0], np.float32)
FRAMES = np.stack([PIXELS, PIXELS + 1])
WHERE = "multi_modal_data.x"


def value(kind: MediaKind, given: object, *, most_nbytes: int = 2**20, declared: object = None) -> MediaValue:
    return MediaValue(kind, given, WHERE, most_nbytes, declared)


def array_of(media: Media) -> np.ndarray[Any, Any]:
    assert media.array is not None
    return np.frombuffer(media.data, media.array.dtype).reshape(media.array.shape)


@pytest.mark.parametrize("given", [b"abc", bytearray(b"abc"), memoryview(b"abc"), "data:;base64,YWJj"])
def test_encoded_files_stay_as_they_are(given: object) -> None:
    """Fault: bytes are looked into, copied wrongly, or lose their name."""
    assert read_given(value("image", given)) == Media(kind="image", data=b"abc", where=WHERE)


@pytest.mark.parametrize(
    ("kind", "given", "expected", "rate"),
    [
        ("image", PIXELS, PIXELS, None),
        ("image", np.asfortranarray(PIXELS), PIXELS, None),
        ("image", PIXELS[:, ::2], PIXELS[:, ::2], None),
        ("audio", SAMPLES, SAMPLES, None),
        ("audio", (SAMPLES, 16000), SAMPLES, 16000.0),
        ("audio", (SAMPLES.astype(">f8"), np.int64(8000)), SAMPLES, 8000.0),
        ("audio", (np.array([0, 16384, -32768], np.int16), 44100.0), SAMPLES, 44100.0),
        ("video", FRAMES, FRAMES, None),
        ("video", (FRAMES, 2.5), FRAMES, 2.5),
        ("video", [PIXELS, PIXELS + 1], FRAMES, None),
        ("video", ([PIXELS, PIXELS + 1], 1), FRAMES, 1.0),
    ],
)
def test_raw_values_come_in_one_layout(
    kind: MediaKind, given: object, expected: np.ndarray, rate: float | None
) -> None:
    """Fault: strides, byte order or the scale of integers are forgotten; a rate is lost."""
    media = read_given(value(kind, given))
    assert np.array_equal(array_of(media), expected) and array_of(media).dtype == expected.dtype
    assert (media.kind, media.rate, media.where) == (kind, rate, WHERE)


def test_pil_pictures_are_read_in_any_mode() -> None:
    """Fault: a palette's numbers are taken for colours, or the mode decides how many channels a model sees."""
    image = pytest.importorskip("PIL.Image")
    picture = image.fromarray(PIXELS)
    assert np.array_equal(array_of(read_given(value("image", picture))), PIXELS)
    grey = read_given(value("image", picture.convert("L")))
    assert grey.array == TensorSpec("uint8", (2, 4, 3))
    assert np.array_equal(array_of(read_given(value("video", [picture, picture]))), np.stack([PIXELS, PIXELS]))
    with pytest.raises(InvalidRequestError, match="an array \\[samples\\]"):
        read_given(value("audio", picture))
    pierced = picture.convert("RGBA")
    pierced.putpixel((3, 1), (0, 0, 0, 0))
    assert array_of(read_given(value("mask", pierced)))[:, :, 3].tolist() == [[255] * 4, [255, 255, 255, 0]]
    with pytest.raises(InvalidRequestError, match="a PIL image with opacity"):
        read_given(value("mask", picture))


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("image", b"", "is empty"),
        ("image", PIXELS.astype(np.float32), "an array [2, 4, 3] of float32 is not accepted; accepted: a uint8 array"),
        ("image", PIXELS[0], "[height, width, 3]"),
        ("image", PIXELS[:, :, :2], "[height, width, 3]"),
        ("image", PIXELS[:0], "[height, width, 3]"),
        ("image", (PIXELS, 2), "no rate"),
        ("image", [PIXELS], "a list is not accepted"),
        ("mask", PIXELS, "[height, width, 4]"),
        ("mask", (np.zeros((2, 2, 4), np.uint8), 1), "no rate"),
        ("image", 7, "bytes of a file, a data: URL"),
        ("image", None, "a uint8 array [height, width, 3], or a PIL image"),
        ("audio", np.zeros((2, 3), np.float32), "of one channel"),
        ("audio", np.array([1, 2], np.int32), "floats or int16"),
        ("audio", np.array([0.0, np.nan]), "floats or int16"),
        ("audio", np.array(["a"]), "floats or int16"),
        ("audio", (SAMPLES, 0), "[1]: 0 is not accepted; accepted: a number of Hz > 0"),
        ("audio", (SAMPLES, True), "a number of Hz > 0"),
        ("audio", (SAMPLES, float("inf")), "a number of Hz > 0"),
        ("audio", (SAMPLES, "16k"), "a number of Hz > 0"),
        ("audio", ([0.0, 0.5], 16000), "an array [samples]"),
        ("audio", (SAMPLES,), "an array [samples]"),
        ("video", PIXELS, "[frames, height, width, 3]"),
        ("video", [PIXELS, PIXELS[:1]], "a list of pictures"),
        ("video", (FRAMES, -1), "frames per second > 0"),
        ("image", Media(kind="audio", data=b"a"), "a Media is not accepted"),
        ("image", "picture.png", "'picture.png' is not accepted; accepted: bytes of a file"),
        ("image", Path("picture.png"), "bytes of a file"),
        ("image", "file:///etc/passwd", "bytes of a file"),
        ("image", "http://host/a.png", "bytes of a file"),
    ],
)
def test_what_is_no_such_media_is_refused_by_name(kind: MediaKind, given: object, said: str) -> None:
    """Fault: a wrong layout reaches a model; a file is opened where callers are strangers."""
    with pytest.raises(InvalidRequestError) as caught:
        read_given(value(kind, given))
    assert said in caught.value.message and caught.value.message.startswith(WHERE)


def test_a_declared_format_is_checked_where_it_stands() -> None:
    """Fault: the refusal of a format names the data."""
    sound = base64.b64encode(b"RIFF....WAVE").decode()
    found = MediaValue("audio", sound, "m.input_audio.data", 2**20, "wav")
    assert read_given(found).data == b"RIFF....WAVE"
    with pytest.raises(InvalidRequestError, match="wav, as the data are") as caught:
        read_given(MediaValue("audio", sound, "m.input_audio.data", 2**20, "mp3"))
    assert caught.value.field == "m.input_audio.format"
    # Bare base64 that looks like a path or a URL is neither.
    with pytest.raises(InvalidRequestError, match="RFC 4648"):
        read_local(MediaValue("audio", __file__, "m.input_audio.data", 2**20, "wav"))


def test_local_files_by_path_and_by_url(tmp_path: Path) -> None:
    """Fault: a name with a space or a colon is not found; data: stops working where files do."""
    path = tmp_path / "a: picture é.png"
    path.write_bytes(b"pixels")
    for given in (path, str(path), path.as_uri(), f"FILE://localhost{path.as_uri()[7:]}"):
        assert read_local(value("image", given)).data == b"pixels"
    assert read_local(value("image", "data:;base64,YWJj")).data == b"abc"
    assert read_local(value("audio", SAMPLES)).array == TensorSpec("float32", (3,))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere.png", "a file that can be read (No such file"),
        ("", "a file that can be read"),
        ("a\0b", "a file that can be read"),
        (Path("/"), "a file that can be read (Is a directory)"),
        ("file://host/a.png", "file:///PATH"),
        ("file:///a%00b", "file:///PATH"),
        ("https://host/a.png", "nothing is fetched"),
        ("ftp://host/a.png", "a file that can be read"),
        (7, "bytes of a file"),
    ],
)
def test_files_that_cannot_be_read_are_refused(given: object, said: str, tmp_path: Path) -> None:
    """Fault: an OSError without a field, or with one that is somebody else's."""
    with pytest.raises(InvalidRequestError) as caught:
        read_local(value("image", given))
    assert said in caught.value.message and caught.value.field == WHERE


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """Fault: gigabytes are read to be counted. (A sparse file is large without taking room.)"""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(InvalidRequestError, match="at most 1000 bytes"):
        read_local(value("video", path, most_nbytes=1000))


def test_an_endless_file_is_not_read_to_its_end() -> None:
    """Fault: a file whose size says 0 is read until memory ends."""
    with pytest.raises(InvalidRequestError, match="at most 1000 bytes"):
        read_local(value("video", "/dev/zero", most_nbytes=1000))


def test_media_are_bounded_together_in_number_and_bytes() -> None:
    """Fault: each of many passes because each alone is small enough."""
    gathered = GatheredState(read_given, 10)
    assert [gathered.add("image", b"1234", "a"), gathered.add("audio", b"1234", "b")] == [0, 1]
    with pytest.raises(InvalidRequestError, match="c: 3 bytes are not accepted; accepted: at most 2"):
        gathered.add("image", b"123", "c")
    assert [media.where for media in gathered.media] == ["a", "b"]
    many = GatheredState(read_given, 2**20)
    for index in range(MOST_MEDIA):
        many.add("image", b"1", str(index))
    with pytest.raises(InvalidRequestError, match="last: more than 64"):
        many.add("image", b"1", "last")


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("http://a", "http"),
        ("DATA:,", "data"),
        ("a/b.png", ""),
        ("C:\\a", ""),
        ("é:x", ""),
        (":x", ""),
        ("", ""),
        ("x" * 99, ""),
    ],
)
def test_schemes(text: str, scheme: str) -> None:
    """Fault: a path with a colon is taken for a URL, or capitals hide one."""
    assert scheme_of(text) == scheme


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (b"x" * 10**6, "bytes of 1000000 bytes"),
        (np.zeros((9, 1000)), "an array [9, 1000] of float64"),
        ({"x": 1}, "a dict"),
        (Path("a/b"), "'a/b'"),
        (None, "None"),
        (2.5, "2.5"),
    ],
)
def test_a_value_is_told_in_few_words(given: object, told: str) -> None:
    """Fault: megabytes, or an object's own idea of itself, in a message."""
    assert told_of(given) == told
    assert len(told_of("x" * 10**6)) < 130


def test_pictures_are_recognised_without_importing_their_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: every server pays for a library that only some callers have."""
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    assert read_given(value("image", PIXELS)).array == TensorSpec("uint8", (2, 4, 3))
    assert "PIL.Image" not in sys.modules
