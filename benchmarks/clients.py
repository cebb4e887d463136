"""Clients of a server under measurement: one streamed question, many at once, and a load that goes on until it is told to stop.

`python -m benchmarks.clients PORT MODEL STREAMS QUESTION` is that load, in a process of its own: it says "ready" when every stream
has brought something, and at the end of its standard input how many events and bytes a second came since. Times are seconds of
time.monotonic.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

STREAM_TIMEOUT_S = 120.0
_PIECE_NBYTES = 2**18
_LONGEST_EVENT_NBYTES = 2**24


@dataclass(slots=True)
class StreamState:
    """What has come of one streamed answer. `text` is all that was written, `audio_nbytes` all sound as sent (base64)."""

    sent_s: float = 0.0
    ended_s: float = 0.0
    events: int = 0
    nbytes: int = 0
    audio_nbytes: int = 0
    text: str = ""
    whole: bool = False

    @property
    def took_s(self) -> float:
        return self.ended_s - self.sent_s


@dataclass(frozen=True, slots=True)
class Question:
    """`wanted` is what the prompt says; `modalities` as in a chat request."""

    port: int
    model: str
    wanted: Mapping[str, Any]
    modalities: tuple[str, ...] = ("text",)

    @property
    def request(self) -> bytes:
        body = json.dumps(
            {
                "model": self.model,
                "messages": [{"role": "user", "content": json.dumps(self.wanted)}],
                "modalities": list(self.modalities),
                "stream": True,
            }
        )
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        return f"{head}\r\nConnection: close\r\n\r\n{body}".encode()


async def stream(question: Question, state: StreamState) -> StreamState:
    """One streamed answer, every event of it parsed. ConnectionError where it broke off."""
    reader, writer = await asyncio.open_connection("127.0.0.1", question.port, limit=_LONGEST_EVENT_NBYTES)
    state.sent_s = time.monotonic()
    writer.write(question.request)
    async with asyncio.timeout(STREAM_TIMEOUT_S):
        while line := await reader.readline():
            _take(line, state)
    writer.close()
    state.ended_s = time.monotonic()
    if not state.whole:
        raise ConnectionError("a stream broke off")
    return state


def _take(line: bytes, state: StreamState) -> None:
    if line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
        raise ConnectionError(line.decode().strip())
    if line.startswith(b"data: [DONE]"):
        state.whole = True
    if not line.startswith(b"data: {"):
        return
    state.events += 1
    state.nbytes += len(line)
    for choice in json.loads(line[6:]).get("choices") or []:
        delta = choice["delta"]
        state.text += delta.get("content") or ""
        state.audio_nbytes += len((delta.get("audio") or {}).get("data") or "")


async def at_once(question: Question, count: int) -> list[StreamState]:
    """`count` streams that are asked for at the same moment."""
    return await asyncio.gather(*(stream(question, StreamState()) for _ in range(count)))


# ---- a load ----


@dataclass(slots=True)
class LoadState:
    """What all streams have brought; `begun` are those that have brought anything."""

    begun: set[int] = field(default_factory=set)
    events: int = 0
    nbytes: int = 0


async def _again_and_again(question: Question, number: int, state: LoadState) -> None:
    """Reads as fast as it comes and looks at nothing, so that the load's own work is small."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", question.port)
        writer.write(question.request)
        while data := await reader.read(_PIECE_NBYTES):
            state.nbytes += len(data)
            state.events += data.count(b"data: {")
            if data.count(b"data: {"):
                state.begun.add(number)
        writer.close()


async def _load(question: Question, streams: int) -> dict[str, float]:
    state = LoadState()
    running = [asyncio.create_task(_again_and_again(question, number, state)) for number in range(streams)]
    while len(state.begun) < streams:
        await asyncio.sleep(0.05)
        for task in running:
            if task.done():
                task.result()
    print("ready", flush=True)
    begun, events, nbytes = time.monotonic(), state.events, state.nbytes
    await asyncio.to_thread(sys.stdin.read)
    took = time.monotonic() - begun
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return {"events_per_s": (state.events - events) / took, "nbytes_per_s": (state.nbytes - nbytes) / took}


@dataclass(slots=True)
class Load:
    """A load that runs; its figures are there when it has ended."""

    figures: dict[str, float] = field(default_factory=dict)


@contextlib.contextmanager
def loaded(question: Question, streams: int) -> Iterator[Load]:
    """The server answers `streams` of this question at a time, for as long as this holds."""
    asked = json.dumps([question.wanted, list(question.modalities)])
    command = [sys.executable, "-m", "benchmarks.clients", str(question.port), question.model, str(streams), asked]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    load = Load()
    try:
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError("the load did not begin")
        yield load
        load.figures = json.loads(process.communicate(timeout=60)[0])
    finally:
        process.kill()
        process.wait(10)


def main() -> None:
    port, model, streams, asked = sys.argv[1:]
    wanted, modalities = json.loads(asked)
    question = Question(int(port), model, wanted, tuple(modalities))
    print(json.dumps(asyncio.run(_load(question, int(streams)))), flush=True)


if __name__ == "__main__":
    main()
