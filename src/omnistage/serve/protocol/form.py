"""From a body of multipart/form-data (RFC 7578) to its parts. The one place that knows the library which reads it.

The body is in memory, bounded where it was read; here its number of parts is. Every mistake is an InvalidRequestError. Knows
nothing of what the fields mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from omnistage.core.errors import InvalidRequestError

FORM = "multipart/form-data"
MOST_PARTS = 64


@dataclass(frozen=True, slots=True)
class Part:
    """One field. `filename` is None for what is no file."""

    name: str
    data: bytes
    filename: str | None = None

    @property
    def text(self) -> str:
        """Raises InvalidRequestError for a file, and for what is no UTF-8."""
        if self.filename is not None:
            raise InvalidRequestError(f"{self.name}: a file is not accepted; accepted: text", field=self.name)
        try:
            return self.data.decode()
        except UnicodeDecodeError:
            raise InvalidRequestError(f"{self.name}: is not valid UTF-8; accepted: text", field=self.name) from None


def read_form(content_type: str, body: bytes) -> list[Part]:
    """The parts, in order. `content_type` is the request's header."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != FORM.encode() or not boundary:
        raise InvalidRequestError(f"the body must be {FORM} with a boundary")
    reading = _FormState()
    try:
        reading.parser(boundary).write(body)
    except FormParserError as error:
        raise InvalidRequestError(f"the body is not valid {FORM}: {error}") from None
    if not reading.is_whole:
        raise InvalidRequestError(f"the body is not valid {FORM}: it ends before its last boundary")
    return reading.parts


class _FormState:
    """What a parser has told so far."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.is_whole = False
        self._header, self._value, self._data = bytearray(), bytearray(), bytearray()
        self._disposition = ""

    def parser(self, boundary: bytes) -> MultipartParser:
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_begin": self._begin_header,
                "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_part_data": lambda data, start, end: self._data.extend(data[start:end]),
                "on_part_end": self._end,
                "on_end": self._close,
            },
        )

    def _begin(self) -> None:
        if len(self.parts) == MOST_PARTS:
            raise InvalidRequestError(f"the body has more than {MOST_PARTS} fields")
        self._data, self._disposition = bytearray(), ""

    def _begin_header(self) -> None:
        self._header, self._value = bytearray(), bytearray()

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value.decode("latin-1")

    def _end(self) -> None:
        options = parse_options_header(self._disposition)[1]
        name, filename = options.get(b"name"), options.get(b"filename")
        if name is None:
            raise InvalidRequestError(f"the body is not valid {FORM}: a part has no name")
        told = None if filename is None else filename.decode(errors="replace")
        self.parts.append(Part(name.decode(errors="replace"), bytes(self._data), told))

    def _close(self) -> None:
        self.is_whole = True
