"""What a worker and a helper that prepares inputs say to each other, and the frames in which it travels.

worker --StageConfig, then one Prepare after another--> helper --HelperReady or HelperFailed, then Answers--> worker

A frame is its length (8 bytes, little-endian) and a message in msgpack. A helper has one request at a time, so an answer needs no
number. Knows nothing of processes.
"""

from __future__ import annotations

import socket

import msgspec

from omnistage.config.stage import StageConfig
from omnistage.core.errors import ErrorInfo
from omnistage.core.request import OmniRequest
from omnistage.wire.messages import Message

LENGTH_NBYTES = 8
SLACK_NBYTES = 2**20
"""How much longer than `max_input_nbytes` an answer may be: names, shapes and the frame itself."""


class Prepare(Message, frozen=True, kw_only=True):
    """Prepare the inputs of this request."""

    request: OmniRequest


class HelperReady(Message, frozen=True, kw_only=True):
    """The processor is loaded."""


class HelperFailed(Message, frozen=True, kw_only=True):
    """The processor cannot be loaded; the helper ends after this."""

    error: ErrorInfo


class Answer(Message, frozen=True, kw_only=True):
    """`value` is what the processor made (prepare.coding), unless `error` says why it made nothing. `repeatable`: another request
    with the same prompt would get the same. `took_s`: seconds in the processor."""

    value: bytes = b""
    repeatable: bool = False
    took_s: float = 0.0
    error: ErrorInfo | None = None


FromHelper = HelperReady | HelperFailed | Answer


def frame(message: StageConfig | Prepare | FromHelper) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH_NBYTES, "little") + body


def read_frame(line: socket.socket) -> bytearray | None:
    """The next message's bytes from a blocking socket; None at its end."""
    length = _read(line, LENGTH_NBYTES)
    return None if length is None else _read(line, int.from_bytes(length, "little"))


def _read(line: socket.socket, nbytes: int) -> bytearray | None:
    data = bytearray(nbytes)
    view = memoryview(data)
    while view:
        count = line.recv_into(view)
        if count == 0:
            return None
        view = view[count:]
    return data


class FrameState:
    """Messages out of bytes that come in pieces. Raises ValueError for one of more than `limit_nbytes`."""

    def __init__(self, limit_nbytes: int) -> None:
        self._limit_nbytes = limit_nbytes
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete now."""
        self._held += data
        complete = []
        while len(self._held) >= LENGTH_NBYTES:
            end = LENGTH_NBYTES + int.from_bytes(self._held[:LENGTH_NBYTES], "little")
            if end > self._limit_nbytes:
                raise ValueError(f"a message of {end} bytes; accepted: at most {self._limit_nbytes}")
            if len(self._held) < end:
                break
            with memoryview(self._held) as held:
                complete.append(bytes(held[LENGTH_NBYTES:end]))
            del self._held[:end]
        return complete
