"""One client's connection: uvicorn's h11 protocol with deadlines on what the client sends, and a short way for streams.

A head must be whole HEAD_S after the connection stands or its last answer ended, a body BODY_S after its head; who is later gets a
408, if nothing was answered yet, and is cut off. The short way is an ASGI extension, `scope["extensions"][PIECES]`: it writes one
piece of a chunked body that has begun, as `send` would, but past the layers and the state machine that only a response's head
and end concern. Knows nothing of what is served. Imports no web framework.
"""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from omnistage.core.errors import ClientTooSlowError, QueueFullError

HEAD_S = 10.0
BODY_S = 60.0
MOST_CONNECTIONS = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
"""Half of the files that this process may open: the rest is for stages and their restarts."""
PIECES = "omnistage.pieces"

WritePiece = Callable[[bytes], Awaitable[None]]
"""Writes one piece, not empty, when there is room for it; does nothing once the client has gone."""


def http_config(app: Any, *, last_words_s: int) -> uvicorn.Config:
    """How every server of this package speaks HTTP. `last_words_s`: how long clients may read on when it ends."""
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=last_words_s,
    )


class Connection(H11Protocol):
    """The state of one connection. `_owed` is what the deadline that runs is for: "head", "body", or nothing."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._served = self.app
        self.app = self._with_pieces
        self._owed: str | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            self._refuse(503, QueueFullError.code, f"more than {MOST_CONNECTIONS} connections are open")
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._expect(None)

    def _watch(self) -> None:
        """Lets the deadline run for what the client owes now. One that runs goes on: a byte now and then moves nothing."""
        match self.conn.their_state:
            case h11.IDLE:
                self._expect("head", HEAD_S)
            case h11.SEND_BODY:
                self._expect("body", BODY_S)
            case _:
                self._expect(None)

    def _expect(self, part: str | None, within_s: float = 0.0) -> None:
        if part == self._owed:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._owed = part
        self._deadline = None if part is None else self.loop.call_later(within_s, self._late, part, within_s)

    def _late(self, part: str, within_s: float) -> None:
        if part == "head" and not self.conn.trailing_data[0]:
            self.transport.close()  # nothing was asked
        else:
            self._refuse(408, ClientTooSlowError.code, f"the request's {part} was not whole within {within_s:g} s")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "invalid_http", msg)

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Ends the connection, with an error object where no answer has begun. Whoever works on one is told at once that the client
        has gone, not when the last byte is out: until then it might answer a second time."""
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(self._refusal(status, code, message))
        cycle: Any = self.cycle  # None before the first request, whatever its type says
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()

    def _refusal(self, status: int, code: str, message: str) -> bytes:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        said = {"message": message, "type": kind, "param": None, "code": code}
        body = json.dumps({"error": said}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        response = h11.Response(status_code=status, reason=HTTPStatus(status).phrase, headers=headers)
        return b"".join(self.conn.send(event) or b"" for event in (response, h11.Data(data=body), h11.EndOfMessage()))

    async def _with_pieces(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["http_version"] == "1.1" and scope["method"] != "HEAD":
            scope["extensions"] = {PIECES: self._piece_writer()}
        await self._served(scope, receive, send)

    def _piece_writer(self) -> WritePiece:
        cycle, flow, transport = self.cycle, self.flow, self.transport

        async def write(piece: bytes) -> None:
            if flow.write_paused and not cycle.disconnected:
                await flow.drain()
            if cycle.disconnected:
                await asyncio.sleep(0)  # a turn for whoever watches the client, to end what writes to it
            else:
                transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))

        return write
