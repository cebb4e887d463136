"""Callers who ask for pictures over plain sockets, and what a stage that draws says of itself. Its name is painter."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import socket
import threading
from collections.abc import Callable, Sequence
from http.client import HTTPResponse
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from tests.faults.server import ServerProcess, eventually
from tests.serve.files import opened

PATH = "/v1/images/generations"
TOGETHER = 20


def asked(server: ServerProcess, body: dict[str, Any]) -> bytes:
    """The whole answer."""
    with answer_to(server, body) as response:
        found: bytes = response.read()
        return found


def refused(server: ServerProcess, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Status and error of what is not to be answered otherwise."""
    with pytest.raises(HTTPError) as raised:
        asked(server, body)
    error: dict[str, Any] = json.loads(raised.value.read())["error"]
    return raised.value.code, error


def answer_to(server: ServerProcess, body: dict[str, Any]) -> HTTPResponse:
    """It begins; each wait for more of it has a deadline."""
    url, headers = f"http://127.0.0.1:{server.port}{PATH}", {"Content-Type": "application/json"}
    request = Request(url, json.dumps({"size": "64x64", **body}).encode(), headers)
    return cast(HTTPResponse, urlopen(request, timeout=60))


def sent(server: ServerProcess, body: dict[str, Any]) -> socket.socket:
    """A connection on which `body` has been asked for."""
    connection = socket.create_connection(("127.0.0.1", server.port), 60)
    connection.sendall(request_bytes(body))
    return connection


def request_bytes(body: dict[str, Any]) -> bytes:
    text = json.dumps({"size": "64x64", **body}).encode()
    return b"POST %b HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n%b" % (PATH.encode(), len(text), text)


def stage(server: ServerProcess) -> dict[str, Any]:
    found: dict[str, Any] = server.debug_state()["workers"]["painter/0"]["stages"]["painter"]
    return found


def open_requests(server: ServerProcess) -> int:
    found: int = server.debug_state()["driver"]["machine"]["open"]
    return found


def steps(server: ServerProcess) -> int:
    return int(stage(server)["picture_steps_total"])


def holds(server: ServerProcess, condition: Callable[[dict[str, Any]], bool], timeout_s: float = 20.0) -> bool:
    """Asks the stage until it does."""
    return eventually(lambda: condition(stage(server)), timeout_s)


def pictures(answer: bytes) -> np.ndarray[Any, Any]:
    """[n, height, width, 3]"""
    return np.stack([picture_of(one) for one in json.loads(answer)["data"]])


def picture_of(told: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(opened(base64.b64decode(told["b64_json"])))


def events(server: ServerProcess, body: dict[str, Any], came: threading.Event | None = None) -> list[dict[str, Any]]:
    """All of a stream; `came` is set with the first."""
    found = []
    with answer_to(server, body) as response:
        for line in response:
            if line.startswith(b"data: "):
                found.append(json.loads(line.removeprefix(b"data: ")))
                if came is not None:
                    came.set()
    return found


async def leave(port: int, body: dict[str, Any], place: int, patience_s: float) -> str:
    """Asks, and closes the socket after some time: before the request is whole, while it waits, is drawn or answered, or not.
    `place` says which: of twenty one asks by half, and two stay."""
    words, stays = request_bytes(body), place % 10 == 4
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        if place % 20 == 0:
            writer.write(words[: len(words) // 2])
            await asyncio.sleep(patience_s / 10)
            return "half"
        writer.write(words)
        async with asyncio.timeout(30.0 if stays else patience_s):
            await reader.readuntil(b"usage")
            return "finished"
    except TimeoutError:
        return "left"
    finally:
        writer.transport.abort()


async def leave_all(port: int, bodies: Sequence[dict[str, Any]], chance: random.Random) -> list[str]:
    """What became of each; `TOGETHER` at a time."""
    found: list[str] = []
    for start in range(0, len(bodies), TOGETHER):
        some = enumerate(bodies[start : start + TOGETHER], start)
        callers = [leave(port, body, place, chance.random() ** 2 * 0.8) for place, body in some]
        found += await asyncio.gather(*callers)
    return found
