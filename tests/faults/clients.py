"""Callers over plain sockets: HTTP/1.1, one request a connection, read at any pace, left at any moment.

Knows how answers are framed (status, chunks, events), not which are right. Times in seconds.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SLOW_NBYTES_PER_S = 1024
_SLOW_BEATS = 4
_PIECE_NBYTES = 65536


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and how its caller behaves. `fault` names what is ordered with it; `leaves_after_s` closes the connection
    so long after the last byte was sent; `slow_for_s` reads 1 KB/s for so long, then at full speed (None: always fast)."""

    number: int
    words: tuple[str, ...]
    seed: int
    modalities: tuple[str, ...] | None = ("text", "audio")
    stream: bool = True
    audio_format: str | None = None
    fault: str = ""
    leaves_after_s: float | None = None
    slow_for_s: float | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def hears(self) -> bool:
        return self.modalities is not None and "audio" in self.modalities

    def body(self, model: str) -> bytes:
        values: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": " ".join(self.words)}],
            "seed": self.seed,
            "stream": self.stream,
            **self.fields,
        }
        if self.modalities is not None:
            values["modalities"] = list(self.modalities)
        if self.audio_format is not None:
            values["audio"] = {"format": self.audio_format}
        if self.stream:
            values["stream_options"] = {"include_usage": True}
        return json.dumps(values).encode()


@dataclass(slots=True)
class Heard:
    """What came of it. `status` 0: no answer at all; `complete`: the answer's own framing says that it has ended."""

    asked: Asked
    status: int = 0
    left: bool = False
    complete: bool = False
    stalled: bool = False
    text: str = ""
    transcript: str = ""
    sound: bytes = b""
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    strange: list[str] = field(default_factory=list)
    first_output_s: float | None = None
    took_s: float = 0.0
    nbytes: int = 0

    @property
    def ok(self) -> bool:
        return self.status == 200 and self.error is None and self.complete


async def ask(
    port: int, asked: Asked, *, model: str = "faults", timeout_s: float = 60.0, heard: Heard | None = None
) -> Heard:
    """The whole conversation; `stalled` if it has not ended by `timeout_s`. `heard` fills while it goes on."""
    heard = heard or Heard(asked)
    began = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            await _converse(port, asked, model, heard)
    except TimeoutError:
        heard.stalled = True
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        if not heard.left:
            heard.strange.append(f"the connection broke: {type(error).__name__}")
    heard.took_s = time.monotonic() - began
    return heard


async def _converse(port: int, asked: Asked, model: str, heard: Heard) -> None:
    connection = socket.socket()
    connection.setblocking(False)
    if asked.slow_for_s is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=_limit(asked))
    try:
        body = asked.body(model)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        )
        writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        await writer.drain()
        reading = asyncio.ensure_future(_read(reader, asked, heard))
        try:
            await asyncio.wait_for(reading, asked.leaves_after_s)
        except TimeoutError:
            if asked.leaves_after_s is None:
                raise
            heard.left = True
    finally:
        writer.transport.abort()


def _limit(asked: Asked) -> int:
    return _PIECE_NBYTES if asked.slow_for_s is None else 2048


async def _read(reader: asyncio.StreamReader, asked: Asked, heard: Heard) -> None:
    stream = AnswerState(heard)
    slow_until = time.monotonic() + (asked.slow_for_s or 0.0)
    while True:
        slow = time.monotonic() < slow_until
        piece = await reader.read(SLOW_NBYTES_PER_S // _SLOW_BEATS if slow else _PIECE_NBYTES)
        if not piece:
            break
        heard.nbytes += len(piece)
        stream.feed(piece)
        if slow:
            await asyncio.sleep(1 / _SLOW_BEATS)
    stream.end()


class AnswerState:
    """Takes the bytes of one answer apart as they come: head, chunks, events."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._buffer = bytearray()
        self._body = bytearray()
        self._headers: dict[str, str] | None = None
        self._done = False
        self._began = time.monotonic()

    def feed(self, piece: bytes) -> None:
        self._buffer += piece
        if self._headers is None and b"\r\n\r\n" in self._buffer:
            head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            self._heard.status = int(first.split()[1])
            self._headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            self._buffer = bytearray(rest)
        if self._headers is not None:
            self._unframe()
            if self._is_stream:
                self._take_events()

    @property
    def _is_stream(self) -> bool:
        return self._headers is not None and self._headers.get("content-type", "").startswith("text/event-stream")

    def _unframe(self) -> None:
        assert self._headers is not None
        if self._headers.get("transfer-encoding") != "chunked":
            self._body += self._buffer
            self._buffer.clear()
            self._heard.complete = len(self._body) == int(self._headers.get("content-length", "-1"))
            return
        while b"\r\n" in self._buffer:
            size, _, rest = bytes(self._buffer).partition(b"\r\n")
            count = int(size, 16)
            if len(rest) < count + 2:
                return
            self._body += rest[:count]
            self._buffer = bytearray(rest[count + 2 :])
            self._heard.complete = self._heard.complete or count == 0

    def _take_events(self) -> None:
        while b"\n\n" in self._body:
            event, _, rest = bytes(self._body).partition(b"\n\n")
            self._body = bytearray(rest)
            self._take_event(event.removeprefix(b"data: "))

    def _take_event(self, data: bytes) -> None:
        heard = self._heard
        if self._done or heard.error is not None:
            heard.strange.append(f"an event after the end: {data[:80]!r}")
        if data == b"[DONE]":
            self._done = True
            return
        value = json.loads(data)
        if "error" in value:
            heard.error = value["error"]
            return
        if value.get("usage") is not None:
            if heard.usage is not None:
                heard.strange.append("usage came twice")
            heard.usage = value["usage"]
        for choice in value.get("choices", ()):
            self._take_delta(choice["delta"])

    def _take_delta(self, delta: dict[str, Any]) -> None:
        heard, audio = self._heard, delta.get("audio") or {}
        heard.text += delta.get("content") or ""
        heard.transcript += audio.get("transcript", "")
        heard.sound += base64.b64decode(audio.get("data", ""))
        is_output = delta.get("content") or audio.get("transcript") or audio.get("data")
        if is_output and heard.first_output_s is None:
            heard.first_output_s = time.monotonic() - self._began

    def end(self) -> None:
        """The connection was closed by the server."""
        heard = self._heard
        if self._headers is None:
            return
        if self._is_stream:
            if self._body:
                heard.strange.append(f"half an event at the end: {bytes(self._body[:80])!r}")
            heard.complete = heard.complete and (self._done or heard.error is not None)
            return
        value = json.loads(self._body) if heard.complete and self._body else {}
        if "error" in value:
            heard.error = value["error"]
            return
        for choice in value.get("choices", ())[:1]:
            message = choice["message"]
            audio = message.get("audio") or {}
            heard.text = message.get("content") or ""
            heard.transcript = audio.get("transcript", "")
            heard.sound = base64.b64decode(audio.get("data", ""))
        heard.usage = value.get("usage")


async def all_of(
    port: int, asked: Sequence[Asked], *, together: int, model: str = "faults", timeout_s: float = 60.0
) -> list[Heard]:
    """Every request, at most `together` at once, begun in order."""
    places = asyncio.Semaphore(together)

    async def one(request: Asked) -> Heard:
        async with places:
            return await ask(port, request, model=model, timeout_s=timeout_s)

    return list(await asyncio.gather(*(one(request) for request in asked)))
