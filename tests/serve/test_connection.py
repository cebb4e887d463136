"""Connections as clients make them, over a real port: what is late, broken or too much, and pieces of streams on their way."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, closing
from typing import Any

import httpx
import pytest
from uvicorn.server import ServerState

from omnistage.serve import connection
from omnistage.serve.client import EventStream
from tests.fakes_runtime import FakeRuntime
from tests.serve.live import CHAT, live, serving_of

SOON_S = 5.0
CHAT_PATH = "/v1/chat/completions"
HEAD = f"POST {CHAT_PATH} HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of little patience."""
    monkeypatch.setattr(connection, "HEAD_S", 0.25)
    monkeypatch.setattr(connection, "BODY_S", 0.25)
    with live(serving_of(FakeRuntime())) as base:
        yield base


def connected(base: str) -> socket.socket:
    url = httpx.URL(base)
    return socket.create_connection((url.host, url.port), SOON_S)


def rest(client: socket.socket) -> bytes:
    """Everything until the server ends the connection."""
    data = b""
    try:
        while piece := client.recv(2**16):
            data += piece
    except ConnectionError:
        pass
    return data


def answered(client: socket.socket) -> bytes:
    """One answer with a JSON object for a body, on a connection that stays."""
    data = b""
    while not data.endswith(b"}"):
        piece = client.recv(2**16)
        assert piece, data
        data += piece
    return data


def dripped(client: socket.socket) -> bytes:
    """What the server says to one who sends a byte now and then, for ever."""
    deadline = time.monotonic() + SOON_S
    client.settimeout(0.02)
    while time.monotonic() < deadline:
        try:
            client.sendall(b"x")
            if said := client.recv(2**16):
                client.settimeout(SOON_S)
                return said + rest(client)
            return b""
        except TimeoutError:
            continue
        except ConnectionError:
            return b""
    raise AssertionError("nobody cut it off")


def refusal(answer: bytes, status: int) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"connection: close" in head
    error: dict[str, Any] = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("begun", ["GET /hea", HEAD, HEAD + "X-Drip: "])
def test_a_head_that_does_not_end_is_cut_off(address: str, begun: str) -> None:
    """Fault: a client that sends its head slowly, or stops in it, holds a connection for ever."""
    for late in (rest, dripped):
        with closing(connected(address)) as client:
            client.sendall(begun.encode())
            error = refusal(late(client), 408)
        assert (error["code"], "head was not whole within 0.25 s" in error["message"]) == ("client_too_slow", True)


def test_who_says_nothing_is_cut_off_without_a_word(address: str) -> None:
    """Fault: connections on which nothing is asked stay open for ever."""
    with closing(connected(address)) as client:
        assert rest(client) == b""


@pytest.mark.parametrize("length", ["Content-Length: 5000", "Transfer-Encoding: chunked"])
def test_a_body_that_does_not_end_is_cut_off(address: str, length: str) -> None:
    """Fault: a client that sends its body slowly, or stops in it, holds a connection and a task for ever."""
    begun = b"1388\r\n" if "chunked" in length else b""
    for late in (rest, dripped):
        with closing(connected(address)) as client:
            client.sendall(f"{HEAD}{length}\r\n\r\n".encode() + begun)
            error = refusal(late(client), 408)
        assert "body was not whole within 0.25 s" in error["message"]


def test_a_body_that_goes_on_after_its_refusal_is_cut_off(address: str) -> None:
    """Fault: who has its answer already may send for ever, as no deadline runs any more."""
    with closing(connected(address)) as client:
        client.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n")
        assert answered(client).startswith(b"HTTP/1.1 404")
        assert dripped(client) == b""


def test_a_second_request_is_awaited_like_the_first(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the deadline of the first head cuts off the second request, or there is none for it."""
    monkeypatch.setattr(connection, "HEAD_S", 1.0)
    with closing(connected(address)) as client:
        for _ in range(2):
            client.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answered(client).startswith(b"HTTP/1.1 200")
            time.sleep(0.55)
        client.sendall(b"GET /ver")
        refusal(rest(client), 408)


def test_an_answer_may_take_longer_than_a_question(address: str) -> None:
    """Fault: a deadline for what the client sends cuts off what it is sent."""
    with closing(connected(address)) as client:
        body = json.dumps({"messages": CHAT, "stream": True})
        client.sendall(f"{HEAD}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        time.sleep(0.4)
        assert b"[DONE]" in rest(client)
    runtime = FakeRuntime()
    runtime.gate.clear()
    threading.Timer(0.5, runtime.gate.set).start()
    with live(serving_of(runtime)) as base:
        answer = httpx.post(base + CHAT_PATH, json={"messages": CHAT}, timeout=SOON_S)
    assert answer.status_code == 200


def test_many_slow_clients_leave_the_others_alone(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: those who hold connections open keep those who ask from being answered."""
    monkeypatch.setattr(connection, "HEAD_S", 30.0)
    monkeypatch.setattr(connection, "BODY_S", 30.0)
    with ExitStack() as slow:
        for index in range(150):
            client = slow.enter_context(closing(connected(address)))
            client.sendall(HEAD.encode() if index % 2 else f"{HEAD}Content-Length: 9\r\n\r\n".encode())
        for _ in range(3):
            answer = httpx.post(address + CHAT_PATH, json={"messages": CHAT}, timeout=SOON_S)
            assert answer.status_code == 200


def test_what_follows_in_one_packet_is_awaited_too(address: str) -> None:
    """Fault: a head that came together with the request before it begins no deadline for its body."""
    with closing(connected(address)) as client:
        client.sendall(f"GET /version HTTP/1.1\r\nHost: x\r\n\r\n{HEAD}Content-Length: 9\r\n\r\n".encode())
        _, _, second = rest(client).partition(b"}")
    assert "body was not whole" in refusal(second, 408)["message"]


async def test_who_answers_one_that_was_refused_is_told_at_once() -> None:
    """Fault: two answers to one request while the first one is still on its way, and a traceback in the log."""

    class Unread(asyncio.Transport):
        """Never done with what was written."""

        closing = False

        def write(self, data: Any) -> None: ...

        def is_closing(self) -> bool:
            return self.closing

        def close(self) -> None:
            self.closing = True

    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    config = connection.http_config(app, last_words_s=1)
    config.load()
    one = connection.Connection(config=config, server_state=ServerState(), app_state={})
    one.connection_made(Unread())
    one.data_received(f"{HEAD}Transfer-Encoding: chunked\r\n\r\nno length\r\n".encode())
    assert await asyncio.wait_for(one.cycle.receive(), SOON_S) == {"type": "http.disconnect"}
    await one.cycle.send({"type": "http.response.start", "status": 200, "headers": []})
    one.connection_lost(None)


@pytest.mark.parametrize(
    "sent", ["what is this\r\n\r\n", f"{HEAD}Transfer-Encoding: chunked\r\n\r\nno length\r\n", "GET /" + "x" * 2**17]
)
def test_what_is_no_http_is_refused_with_an_error_object(address: str, sent: str) -> None:
    """Fault: a broken request is answered in another form than all the others, or with a traceback and nothing."""
    with closing(connected(address)) as client:
        client.sendall(sent.encode())
        assert refusal(rest(client), 400)["code"] == "invalid_http"


def test_a_body_in_chunks_is_bounded_too(address: str) -> None:
    """Fault: a body without a length is held whatever its size."""

    def pieces() -> Iterator[bytes]:
        for _ in range(30):
            yield b" " * 1000

    answer = httpx.post(address + CHAT_PATH, content=pieces(), timeout=SOON_S)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")


def test_connections_are_bounded(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: clients take every file that the process may open, and no stage can be started anew."""
    monkeypatch.setattr(connection, "MOST_CONNECTIONS", 1)
    monkeypatch.setattr(connection, "HEAD_S", 30.0)
    with closing(connected(address)) as first, closing(connected(address)) as second:
        assert refusal(rest(second), 503)["type"] == "server_error"
        first.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answered(first).startswith(b"HTTP/1.1 200")


class Stepped(threading.Event):
    """A gate that lets one word pass for each `step`."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = threading.Semaphore(0)

    def step(self) -> None:
        self._steps.release()

    def wait(self, timeout: float | None = None) -> bool:
        return self._steps.acquire(timeout=timeout)


def test_every_event_is_written_as_soon_as_it_is_there_and_alone() -> None:
    """Fault: an event waits for others, so that a client sees words in bursts."""
    words = ("a", "b", "c", "d")
    runtime = FakeRuntime(words)
    runtime.gate = gate = Stepped()
    seen: list[list[str]] = []
    body = {"messages": CHAT, "stream": True}
    with live(serving_of(runtime)) as base, httpx.stream("POST", base + CHAT_PATH, json=body, timeout=SOON_S) as answer:
        pieces = answer.iter_raw()
        for _ in words:
            events = next(pieces).decode().split("\n\n")[:-1]
            deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events]
            seen.append([delta["content"] for delta in deltas])
            gate.step()
        assert b"".join(pieces).endswith(b"data: [DONE]\n\n")
    assert seen == [["", "a"], ["b"], ["c"], ["d"]]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_stream_is_framed_as_its_client_can_read_it(version: str) -> None:
    """Fault: chunk lengths in the body of an older client's answer, or none in a newer one's."""
    with live(serving_of(FakeRuntime())) as base, closing(connected(base)) as client:
        body = json.dumps({"messages": CHAT, "stream": True})
        head = f"POST {CHAT_PATH} HTTP/{version}\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        client.sendall((head + body).encode())
        _, _, answer = rest(client).partition(b"\r\n\r\n")
    if version == "1.0":
        assert answer.startswith(b"data: {")
        assert answer.endswith(b"data: [DONE]\n\n")
    else:
        length, _, piece = answer.partition(b"\r\n")
        assert piece.startswith(b"data: {")
        assert piece[int(length, 16) :].startswith(b"\r\n")
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_a_client_that_does_not_read_holds_the_stream_back_and_ends_it_by_leaving() -> None:
    """Fault: what a slow client has not read yet piles up in the server, or a write to one who has gone waits for ever."""
    made: list[int] = []
    finished = threading.Event()

    async def events() -> AsyncGenerator[bytes, None]:
        for index in range(2000):
            made.append(index)
            yield b"x" * 2**16

    async def finish() -> None:
        finished.set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.wait_for(EventStream(events(), finish)(scope, receive, send), SOON_S)

    with live(serving_of(FakeRuntime()), app) as base, closing(connected(base)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        held = -1
        while held != len(made):  # until it makes nothing more
            held = len(made)
            time.sleep(0.1)
        assert 0 < held < 200
        assert not finished.is_set()
        client.close()
        assert finished.wait(SOON_S)
        assert len(made) <= held + 10
