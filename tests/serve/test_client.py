"""Clients that go: work is cancelled, streams are closed, whatever the moment."""

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from omnistage.serve.client import EventStream, until_gone

Message = MutableMapping[str, Any]


async def stays() -> Message:
    await asyncio.sleep(60)
    return {"type": "http.request"}


class Leaving:
    """A client that goes when it is told to."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_work_for_a_client_that_stays_has_its_result() -> None:
    """Fault: a result or an error of the work is lost."""

    async def fails() -> int:
        raise ZeroDivisionError

    assert await until_gone(stays, asyncio.sleep(0, 7)) == 7
    with pytest.raises(ZeroDivisionError):
        await until_gone(stays, fails())


async def test_work_for_a_client_that_goes_is_cancelled() -> None:
    """Fault: the work goes on, or its clean-up has not run when the route goes on."""
    client, cleaned = Leaving(), asyncio.Event()

    async def work() -> None:
        try:
            client.left.set()
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    with pytest.raises(ClientDisconnect):
        await until_gone(client.receive, work())
    assert cleaned.is_set()


async def test_a_stream_is_sent_and_finished() -> None:
    """Fault: the length of a stream is declared, or its last piece is not marked."""
    sent: list[Message] = []
    finished: list[bool] = []

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"a"
        yield b"b"

    async def send(message: Message) -> None:
        sent.append(message)

    async def finish() -> None:
        finished.append(True)

    await EventStream(events(), finish)({"type": "http"}, stays, send)
    headers = dict(sent[0]["headers"])
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert b"content-length" not in headers
    assert [(message["body"], message["more_body"]) for message in sent[1:]] == [
        (b"a", True),
        (b"b", True),
        (b"", False),
    ]
    assert finished == [True]


async def test_a_stream_to_a_client_that_went_before_it_began_is_finished() -> None:
    """Fault: the request of a client that leaves between the first piece and the first byte goes on."""
    client, finished = Leaving(), asyncio.Event()
    client.left.set()

    async def events() -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(60)
        yield b"never"

    async def send(message: Message) -> None:
        await asyncio.sleep(0)

    async def finish() -> None:
        finished.set()

    await EventStream(events(), finish)({"type": "http"}, client.receive, send)
    assert finished.is_set()
