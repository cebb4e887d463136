"""Server-sent events: bytes of one event each. Knows nothing of what is sent."""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"


def event(value: dict[str, Any]) -> bytes:
    """One event. JSON has no line breaks, so one line holds it."""
    return b"data: " + _encode(value) + b"\n\n"
