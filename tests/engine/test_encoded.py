"""Files as text, and what they are declared to be.

Faults pinned: broken base64 is taken for shorter data; megabytes are decoded before their number is looked at; a sound is handed on
as a picture; a format that is not the data's is believed.
"""

import base64
import tracemalloc

import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.engine.encoded import AUDIO_FORMATS, MediaKind, data_of_url, decoded, require_format, require_type

WHERE = "messages[0].content[1].image_url.url"
MOST = 10 * 2**20


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("count", [1, 2, 3, 100, 3 * 2**18 - 1, 3 * 2**18, 3 * 2**18 + 1, 2**21 + 5])
def test_base64_comes_back_as_it_was(count: int) -> None:
    """Fault: what is decoded piece by piece loses or repeats bytes where two pieces meet."""
    data = (bytes(range(256)) * (count // 256 + 1))[:count]
    assert decoded(text_of(data), WHERE, MOST) == data


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "abc",
        "ab=c",
        "=abc",
        "ab c",
        "abcé",
        "ab-_",
        "a===",
        "====",
        "abcd\n",
        "QQ==QQ==",
        "A" * 2**20 + "ab=c",
        "A" * (2**20 - 4) + "QQ==" + "AAAA",
        "\ud800abc",
    ],
)
def test_what_is_no_base64_is_refused_by_name(text: str) -> None:
    """Fault: characters that mean nothing are skipped, and other bytes than the caller's go on."""
    with pytest.raises(InvalidRequestError, match="RFC 4648") as caught:
        decoded(text, WHERE, MOST)
    assert caught.value.field == WHERE
    assert len(caught.value.message) < 400


def test_too_many_bytes_are_refused_before_they_are_made() -> None:
    """Fault: a bound that is looked at when the memory is taken already."""
    text = text_of(bytes(3 * 2**20))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequestError, match="at most 1000 bytes"):
            decoded(text, WHERE, 1000)
        assert tracemalloc.get_traced_memory()[1] < 2**16
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        ("image", "data:image/png;base64"),
        ("image", "DATA:image/PNG;name=a;base64"),
        ("image", "data:;base64"),
        ("image", "data:application/octet-stream;base64"),
        ("audio", "data:audio/wav;base64"),
        ("audio", "data:video/mp4;base64"),
        ("video", "data:video/webm;codecs=vp9;base64"),
    ],
)
def test_a_data_url_is_read(kind: MediaKind, head: str) -> None:
    """Fault: parameters or capitals hide the data."""
    assert data_of_url(kind, f"{head},{text_of(b'abcd')}", WHERE, MOST) == b"abcd"
    assert data_of_url(kind, f"{head},YWJjZA%3D%3D", WHERE, MOST) == b"abcd"


@pytest.mark.parametrize(
    ("kind", "url", "accepted"),
    [
        ("image", "data:image/png;base64", "data:TYPE;base64,DATA"),
        ("image", "data:image/png,abcd", "data:TYPE;base64,DATA"),
        ("image", "data:,", "data:TYPE;base64,DATA"),
        ("image", "data:" + "x" * 1000 + ";base64,YWJj", "data:TYPE;base64,DATA"),
        ("image", "data:audio/wav;base64,YWJj", "image/*"),
        ("image", "data:text/html;base64,YWJj", "image/*"),
        ("video", "data:audio/wav;base64,YWJj", "video/*"),
        ("audio", "data:image/png;base64,YWJj", "audio/* or video/*"),
        ("image", "data:image/png;base64,YWJ", "RFC 4648"),
    ],
)
def test_another_kind_or_form_of_data_is_refused(kind: MediaKind, url: str, accepted: str) -> None:
    """Fault: the model is to look at a sound; the refusal repeats megabytes."""
    with pytest.raises(InvalidRequestError) as caught:
        data_of_url(kind, url, WHERE, MOST)
    assert accepted in caught.value.message and caught.value.field == WHERE
    assert len(caught.value.message) < 400


def test_a_type_that_says_nothing_is_left_to_whoever_reads_the_bytes() -> None:
    """Fault: a plain file server's type is taken for a contradiction."""
    for told in ("", "application/octet-stream", "Application/Octet-Stream; charset=x", "image/jpeg"):
        require_type("image", told, WHERE)
    with pytest.raises(InvalidRequestError, match="'text/html' is not accepted; accepted: image"):
        require_type("image", "text/html; charset=utf-8", WHERE)


@pytest.mark.parametrize(
    ("data", "formats"),
    [
        (b"RIFF\x00\x00\x00\x00WAVE", {"wav"}),
        (b"fLaC....", {"flac"}),
        (b"OggS....", {"ogg", "opus"}),
        (b"ID3\x04....", {"mp3"}),
        (b"\xff\xfb\x90....", {"mp3"}),
        (b"\x00\x00\x00 ftyp", set(AUDIO_FORMATS)),
        (b"\xff", set(AUDIO_FORMATS)),
    ],
)
def test_a_format_is_what_the_data_are(data: bytes, formats: set[str]) -> None:
    """Fault: `format` is accepted and means nothing."""
    for name in AUDIO_FORMATS:
        if name in formats:
            require_format(data, name, "format")
        else:
            with pytest.raises(InvalidRequestError, match="as the data are"):
                require_format(data, name, "format")


@pytest.mark.parametrize("name", ["", "pcm", "WAV", 7, None])
def test_a_format_that_is_none_is_refused_with_the_list(name: object) -> None:
    """Fault: a container nobody reads passes admission."""
    with pytest.raises(InvalidRequestError, match="one of wav, mp3, flac, ogg, opus"):
        require_format(b"RIFF", name, "format")
