"""How many events a second one server process streams to 64 clients at once, beside FastAPI with a pydantic model per chunk.

Both sides make their chunks from a generator in the server's own loop. It gives each stream one chunk in a turn of the loop, as a
step of a batch does, so neither side has two chunks of a stream to write at once: each is written alone. Both run on uvicorn with
h11 and asyncio's loop, the peer as it comes, ours with the connection of `omnistage serve`; one client reads both. What is
compared is the way from a delta to bytes on the socket, nothing else.
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import uvicorn

from benchmarks.peers import fastapi_sse
from benchmarks.rows import Benchmark, Row
from benchmarks.servers import cpu_of, free_port
from omnistage.core.output import CompletionOutput, OmniRequestOutput
from omnistage.core.params import SamplingParams
from omnistage.engine.admission import Ask
from omnistage.engine.served import ServedModel, ServedStage
from omnistage.serve.app import create_app
from omnistage.serve.connection import http_config
from omnistage.serve.serving import Serving

STREAMS = 64
CHUNKS = 200
PAIRS = 5
MODEL = "words"


class WordsEngine:
    """An engine as routes see it, whose model counts."""

    model = ServedModel(MODEL, (ServedStage(0, "words", SamplingParams(), makes="text"),))

    async def generate(self, ask: Ask) -> AsyncGenerator[OmniRequestOutput, None]:
        for index in range(ask.fields["max_tokens"]):
            await asyncio.sleep(0)  # the other streams' turn
            said = CompletionOutput(0, f"word {index} ", (index,))
            yield OmniRequestOutput("r", 0, "text", finished=False, outputs=(said,))
        yield OmniRequestOutput("r", 0, "text", finished=True, finish_reason="stop")


async def read_stream(port: int, chunks: int) -> int:
    """Bytes of one whole stream."""
    body = json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "?"}], "max_tokens": chunks, "stream": True}
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(f"{head}\r\nConnection: close\r\n\r\n{body}".encode())
    received, tail = 0, b""
    while data := await asyncio.wait_for(reader.read(2**18), 60):
        received += len(data)
        tail = (tail + data)[-64:]
    writer.close()
    assert b"[DONE]" in tail, "a stream broke off"
    return received


async def _all_streams(port: int, chunks: int) -> None:
    await asyncio.gather(*(read_stream(port, chunks) for _ in range(STREAMS)))


class Side:
    """A server process and its figures over the rounds. `warm` asks it something, by its port."""

    def __init__(self, module: str, warm: Callable[[int], Coroutine[Any, Any, object]] | None = None) -> None:
        self._warm = warm or (lambda port: _all_streams(port, 10))
        self.port = free_port()
        self.process = subprocess.Popen([sys.executable, "-m", module, str(self.port)])
        self.rates: list[float] = []
        self.cpu_s: list[float] = []

    def warm_up(self) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                asyncio.run(self._warm(self.port))
                return
            except ConnectionError:
                time.sleep(0.1)
        raise TimeoutError("the server did not start")

    def round(self) -> None:
        cpu, begun = cpu_of(self.process.pid), time.perf_counter()
        asyncio.run(_all_streams(self.port, CHUNKS))
        self.rates.append(STREAMS * CHUNKS / (time.perf_counter() - begun))
        self.cpu_s.append(cpu_of(self.process.pid) - cpu)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def events_per_s() -> list[Row]:
    ours, theirs = Side("benchmarks.sse"), Side("benchmarks.peers.fastapi_sse")
    try:
        ours.warm_up()
        theirs.warm_up()
        for _ in range(PAIRS):
            ours.round()
            theirs.round()
    finally:
        ours.stop()
        theirs.stop()
    ratios = [mine / other for mine, other in zip(ours.rates, theirs.rates, strict=True)]
    return [
        Row(
            "sse_vs_fastapi",
            statistics.median(ours.rates),
            ">= 2",
            "events/s",
            f"{STREAMS} streams of {CHUNKS} chunks at once, one server process a side, each chunk written alone on both; "
            f"{PAIRS} pairs, of ratios {min(ratios):.2f} to {max(ratios):.2f}",
            peer=statistics.median(theirs.rates),
            peer_version=fastapi_sse.version,
            ratio=statistics.median(ratios),
            cpu_s_ours=statistics.median(ours.cpu_s),
            cpu_s_peer=statistics.median(theirs.cpu_s),
        )
    ]


BENCHMARKS = (Benchmark(("sse_vs_fastapi",), events_per_s),)


def serve(port: int) -> None:
    engine: Any = WordsEngine()
    app = create_app(Serving(engine, int(time.time())))
    config = http_config(app, last_words_s=1)
    with socket.create_server(("127.0.0.1", port), backlog=2 * STREAMS) as listener:
        uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    serve(int(sys.argv[1]))
