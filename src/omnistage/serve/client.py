"""The client at the other end: noticing that it has gone, and writing events to it at its own pace.

A client that goes ends what is done for it: the work is cancelled, and with it the request in the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omnistage.serve.coding import filled, filled_nbytes
from omnistage.serve.connection import PIECES, WritePiece

T = TypeVar("T")


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises ClientDisconnect, after `work` was cancelled, if the client goes first."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events. `events` yields the bytes of events; `finish` is called when the client goes or all is sent, even
    where nothing was sent at all."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], finish: Callable[[], Awaitable[None]]) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._events = events
        self._finish = finish
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    def init_headers(self, headers: Any = None) -> None:
        """Like any response's, without a length: it is not known."""
        super().init_headers(headers)
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_gone(receive, self._send_all(scope, send))
        except ClientDisconnect:
            return
        finally:
            await self._finish()

    async def _send_all(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        write = scope.get("extensions", {}).get(PIECES) or _writer(send)
        async with aclosing(self._events) as events:
            async for event in events:
                await write(event)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class FilledJson(Response):
    """An answer in JSON whose holes are filled by files while it is sent (serve.coding), at the pace of the client."""

    media_type = "application/json"

    def __init__(self, text: bytes, files: Sequence[bytes] = ()) -> None:
        super().__init__(text, headers={"content-length": str(filled_nbytes(text, files))})
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in filled(bytes(self.body), self._files):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _writer(send: Send) -> WritePiece:
    """How pieces are written where the server has no shorter way."""

    async def write(piece: bytes) -> None:
        await send({"type": "http.response.body", "body": piece, "more_body": True})

    return write
