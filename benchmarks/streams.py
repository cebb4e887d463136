"""Many streamed answers at once, read by one thread that does as little as it can: what it takes of the machine, servers lack.

Sockets and an epoll, no event loop of Python's. It looks at them every PAUSE_S and sleeps between: a client that waits at its
sockets is woken by every single write, and on the same machine the server pays for that. While streams run their bytes are put
aside; what they say is looked at when all have ended. Works with every server of OpenAI's chat. Times are seconds of
time.monotonic.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

TIMEOUT_S = 300.0
PAUSE_S = 0.004
_PIECE_NBYTES = 2**16
_EVENT = b"data: {"


@dataclass(frozen=True, slots=True)
class Answers:
    """What came of all questions: the texts in their order, events of all, seconds from the first question sent to the last
    answer's end, and this client's own CPU seconds meanwhile."""

    texts: list[str]
    events: int
    seconds: float
    cpu_s: float


@dataclass(slots=True)
class _StreamState:
    socket: socket.socket
    pieces: list[bytes] = field(default_factory=list)


def chat_request(port: int, model: str, prompt: str, tokens: int) -> bytes:
    """A question whose answer has exactly `tokens` tokens, greedily chosen and streamed."""
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
    )
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


def ask_all(port: int, requests: Sequence[bytes], look: Callable[[], None] = lambda: None) -> Answers:
    """Sends every request on a connection of its own and reads until all have ended. `look` is called twice: when every answer
    has begun, and when the first has ended. TimeoutError where an answer stands still, ConnectionError where one broke off."""
    cpu_s, begun_s = time.thread_time(), time.monotonic()
    waiter = select.epoll()
    streams: dict[int, _StreamState] = {}
    for request in requests:
        end = socket.create_connection(("127.0.0.1", port))
        end.sendall(request)
        streams[end.fileno()] = _StreamState(end)
        waiter.register(end, select.EPOLLIN)
    _read_all(waiter, streams, look)
    seconds, cpu_s = time.monotonic() - begun_s, time.thread_time() - cpu_s
    waiter.close()
    bodies = [b"".join(stream.pieces) for stream in streams.values()]
    return Answers([_text_of(body) for body in bodies], sum(body.count(_EVENT) for body in bodies), seconds, cpu_s)


def _read_all(waiter: select.epoll, streams: dict[int, _StreamState], look: Callable[[], None]) -> None:
    silent, open_ = set(streams), set(streams)
    while open_:
        time.sleep(PAUSE_S)
        ready = waiter.poll(TIMEOUT_S)
        if not ready:
            raise TimeoutError(f"{len(open_)} answers stand still")
        for descriptor, _ in ready:
            piece = streams[descriptor].socket.recv(_PIECE_NBYTES)
            streams[descriptor].pieces.append(piece)
            if descriptor in silent and _EVENT in piece:
                silent.remove(descriptor)
                if not silent:
                    look()
            if not piece:
                if len(open_) == len(streams):
                    look()
                open_.remove(descriptor)
                waiter.unregister(descriptor)
                streams[descriptor].socket.close()


def _text_of(body: bytes) -> str:
    """All text of one answer's events."""
    if b"data: [DONE]" not in body:
        raise ConnectionError(f"an answer broke off: {body[-300:].decode(errors='replace')}")
    _, _, rest = body.partition(b"\r\n\r\n")
    events = [json.loads(line[6:]) for line in _unchunked(rest).split(b"\n") if line.startswith(_EVENT)]
    choices = [choice for event in events for choice in event.get("choices") or []]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def _unchunked(body: bytes) -> bytes:
    """The content of a chunked body."""
    parts, at = [], 0
    while at < len(body):
        end = body.index(b"\r\n", at)
        nbytes = int(body[at:end], 16)
        parts.append(body[end + 2 : end + 2 + nbytes])
        at = end + 2 + nbytes + 2
    return b"".join(parts)
