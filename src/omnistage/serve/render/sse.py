"""Server-sent events: bytes of one event each. Knows nothing of what is sent."""

from __future__ import annotations

from typing import Any

import msgspec

encode = msgspec.json.Encoder().encode
"""A value as JSON: no line breaks, so that one line of an event holds it."""

DONE = b"data: [DONE]\n\n"


def event(value: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + encode(value) + b"\n\n"


def named_event(value: dict[str, Any]) -> bytes:
    """One event whose name is its `type`."""
    return b"event: %b\n%b" % (str(value["type"]).encode(), event(value))
