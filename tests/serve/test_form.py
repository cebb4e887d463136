"""Forms: parts in order, and everything that is none."""

from contextlib import suppress

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.core.errors import InvalidRequestError
from omnistage.serve.protocol.form import MOST_PARTS, Part, read_form


def form(**given: object) -> tuple[str, bytes]:
    """What httpx sends."""
    request = httpx.Request("POST", "http://test", **given)  # type: ignore[arg-type]
    return request.headers["content-type"], request.read()


def test_parts_come_in_order_with_their_bytes() -> None:
    """Fault: line breaks or boundaries inside of files cut them; a name is lost."""
    data = bytes(range(256)) + b"\r\n--" + b"x" * 99 + b"\r\n"
    told, body = form(data={"prompt": "a ✓ cat"}, files=[("image[]", ("é.png", data)), ("image[]", ("b", b""))])
    parts = read_form(told, body)
    assert [(part.name, part.data) for part in parts] == [
        ("prompt", "a ✓ cat".encode()),
        ("image[]", data),
        ("image[]", b""),
    ]
    assert (parts[0].text, parts[0].filename, parts[1].filename) == ("a ✓ cat", None, "é.png")


@pytest.mark.parametrize(
    ("told", "body", "said"),
    [
        ("", b"", "must be multipart/form-data"),
        ("application/json", b"{}", "must be multipart/form-data"),
        ("multipart/form-data", b"", "with a boundary"),
        ("multipart/form-data; boundary=a", b"", "before its last boundary"),
        ("multipart/form-data; boundary=a", b"nonsense", "is not valid multipart/form-data"),
        (f"multipart/form-data; boundary={'a' * 300}", b"--", "is not valid multipart/form-data"),
        (
            "multipart/form-data; boundary=a",
            b'--a\r\nContent-Disposition: form-data; name="x"\r\n\r\n1',
            "before its last boundary",
        ),
        (  # breaks off in its second part
            "multipart/form-data; boundary=a",
            b'--a\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n--a\r\nContent-Disposition: form-data; name="y"\r\n\r\n2',
            "before its last boundary",
        ),
        ("multipart/form-data; boundary=a", b"--a\r\n\r\n1\r\n--a--\r\n", "a part has no name"),
        (
            "multipart/form-data; boundary=a",
            b'--a\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n' * (MOST_PARTS + 1) + b"--a--\r\n",
            "more than 64 fields",
        ),
        ("multipart/form-data; boundary=a", b"--a\r\nx: " + b"y" * 9000 + b"\r\n\r\n1\r\n--a--\r\n", "is not valid"),
    ],
)
def test_what_is_no_form_is_refused(told: str, body: bytes, said: str) -> None:
    """Fault: half of a form is read as a whole one; a body of many small parts is taken."""
    with pytest.raises(InvalidRequestError) as caught:
        read_form(told, body)
    assert said in caught.value.message


@settings(max_examples=50)
@given(st.binary(max_size=200), st.integers(0, 400))
def test_any_body_is_read_or_refused(noise: bytes, at: int) -> None:
    """Fault: bytes of a stranger raise what nobody expects."""
    told, body = form(data={"prompt": "a"}, files={"image": ("a.png", b"abc")})
    parts: list[Part] = []
    with suppress(InvalidRequestError):
        parts = read_form(told, body[:at] + noise + body[at:])
    assert all(isinstance(part, Part) for part in parts)


def test_a_text_is_text() -> None:
    """Fault: a file stands for a prompt; bytes that are no text raise a UnicodeDecodeError."""
    with pytest.raises(InvalidRequestError, match="prompt: a file is not accepted"):
        _ = Part("prompt", b"a", "a.txt").text
    with pytest.raises(InvalidRequestError, match="prompt: is not valid UTF-8"):
        _ = Part("prompt", b"\xff").text
