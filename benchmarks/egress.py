"""What it costs to bring pictures to clients: from the process that draws to the one that serves, into a file, into text; and how
long others wait for the server meanwhile. Pictures are smooth colours under a little noise, as a photograph has it.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import socket
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import numpy as np
import PIL
import uvicorn
from PIL import Image

from benchmarks.handoff import ArenaLane
from benchmarks.peers.lanes import QueueLane, checksum
from benchmarks.rows import Benchmark, Row
from benchmarks.sse import Side
from omnistage.core.output import OmniRequestOutput
from omnistage.core.params import DiffusionParams
from omnistage.engine.admission import Ask
from omnistage.engine.served import ServedModel, ServedStage
from omnistage.runtime.base import RuntimeStatus
from omnistage.serve.app import create_app
from omnistage.serve.coding import base64_of
from omnistage.serve.connection import http_config
from omnistage.serve.pictures import PNG, encoded
from omnistage.serve.serving import Serving

PAIRS = 7
LARGE, SMALL = 2048, 1024
CLIENTS = 8
LOOKS = 400
LOOK_EVERY_S = 0.02
SPOKEN_NBYTES = 10 * 24000 * 2
"""Ten seconds of pcm16."""

Picture = np.ndarray[Any, Any]


def picture(side: int) -> Picture:
    """uint8 [side, side, 3]."""
    down, across = np.mgrid[0:side, 0:side].astype(np.float32) / side
    waves = (np.sin(9 * across + 3 * down), np.cos(7 * down * across + 1), np.sin(20 * (across - 0.5) ** 2 + 9 * down))
    noise = np.random.default_rng(0).normal(0, 4, (side, side, 3))
    return np.clip(np.stack(waves, -1) * 100 + 128 + noise, 0, 255).astype(np.uint8)


# ---- into text, into a file, to another process ----------------------------------------------------------------------


def _paired(ours: Callable[[], object], theirs: Callable[[], object], times: int) -> tuple[list[float], list[float]]:
    """Seconds of one call, PAIRS times a side, each the mean of `times` calls."""
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(PAIRS):
        for side, call in zip(spent, (ours, theirs), strict=True):
            begun = time.perf_counter()
            for _ in range(times):
                call()
            side.append((time.perf_counter() - begun) / times)
    return spent


def _row(name: str, goal: str, workload: str, peer: str, spent: tuple[list[float], list[float]]) -> Row:
    ratios = [theirs / ours for ours, theirs in zip(*spent, strict=True)]
    return Row(
        name,
        statistics.median(spent[0]) * 1e3,
        goal,
        "ms",
        f"{workload}; {PAIRS} pairs, of ratios {min(ratios):.2f} to {max(ratios):.2f}",
        peer=statistics.median(spent[1]) * 1e3,
        peer_version=peer,
        ratio=statistics.median(ratios),
    )


def base64_rows() -> list[Row]:
    data = np.random.default_rng(0).bytes(SPOKEN_NBYTES)
    assert base64_of(data) == base64.b64encode(data)
    spent = _paired(lambda: base64_of(data), lambda: base64.b64encode(data), 50)
    return [_row("egress_base64_vs_stdlib", ">= 20", "10 s of pcm16, 480 kB", "base64 of Python", spent)]


def png_rows() -> list[Row]:
    pixels = picture(SMALL)

    def default() -> bytes:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        return file.getvalue()

    ours, theirs = encoded(pixels, PNG), default()
    assert all(np.array_equal(np.asarray(Image.open(io.BytesIO(data))), pixels) for data in (ours, theirs))
    workload = f"{SMALL}x{SMALL}, {len(ours)} bytes beside {len(theirs)} ({len(ours) / len(theirs) - 1:+.1%})"
    spent = _paired(lambda: encoded(pixels, PNG), default, 1)
    return [_row("egress_png_vs_default", ">= 1.8", workload, f"Pillow {PIL.__version__}, level 6", spent)]


def transport_rows() -> list[Row]:
    pixels = picture(LARGE).reshape(-1)
    floats = pixels.astype(np.float32) / 255
    ours, theirs = ArenaLane(), QueueLane(relays=1)
    try:
        for _ in range(2):
            assert (ours.send(pixels), theirs.send(floats)) == (checksum(pixels), checksum(floats))
        spent = _paired(lambda: ours.send(pixels), lambda: theirs.send(floats), 3)
    finally:
        ours.close()
        theirs.close()
    workload = (
        f"a picture {LARGE}x{LARGE} to the serving process, every byte read there: as uint8 through an arena, beside float32 "
        "pickled over two hops; what makes bytes of floats is on neither side"
    )
    return [_row("image_transport_vs_pickle", ">= 10", workload, "multiprocessing", spent)]


# ---- the server while it encodes -------------------------------------------------------------------------------------


class PaintingEngine:
    """An engine as routes see it, whose model has painted already."""

    model = ServedModel("painter", (ServedStage(0, "painter", DiffusionParams(), makes="image"),))
    media_nbytes = 0

    def __init__(self) -> None:
        self._pixels = picture(LARGE)

    def status(self) -> RuntimeStatus:
        return RuntimeStatus("ready", {"painter": "ready"})

    async def generate(self, ask: Ask) -> AsyncGenerator[OmniRequestOutput, None]:
        yield OmniRequestOutput("r", 0, "image", finished=True, finish_reason="stop", images=(self._pixels,))


async def _ask(port: int, method: str, path: str, body: bytes = b"") -> int:
    """Bytes of the whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    received, begin = 0, b""
    while data := await asyncio.wait_for(reader.read(2**20), 120):
        begin = begin or data[:15]
        received += len(data)
    writer.close()
    assert begin.startswith(b"HTTP/1.1 200"), begin
    return received


async def _looks_under_load(port: int) -> tuple[list[float], int]:
    """Seconds that /health took, LOOKS times, while CLIENTS want pictures one after another; and how many pictures came."""
    body, done, pictures = json.dumps({"prompt": "a cat"}).encode(), asyncio.Event(), 0

    async def paint() -> None:
        nonlocal pictures
        while not done.is_set():
            await _ask(port, "POST", "/v1/images/generations", body)
            pictures += 1

    painting = [asyncio.create_task(paint()) for _ in range(CLIENTS)]
    await asyncio.sleep(1.0)
    looks = []
    for _ in range(LOOKS):
        begun = time.perf_counter()
        await _ask(port, "GET", "/health")
        looks.append(time.perf_counter() - begun)
        await asyncio.sleep(LOOK_EVERY_S)
    done.set()
    await asyncio.gather(*painting)
    return looks, pictures


def health_rows() -> list[Row]:
    side = Side("benchmarks.egress", warm=lambda port: _ask(port, "GET", "/health"))
    try:
        side.warm_up()
        looks, pictures = asyncio.run(_looks_under_load(side.port))
    finally:
        side.stop()
    looks.sort()
    told = (
        f"median {statistics.median(looks) * 1e3:.1f} ms, worst {looks[-1] * 1e3:.0f} ms, {pictures} pictures meanwhile"
    )
    return [
        Row(
            "health_p99_ms_under_encode",
            looks[int(0.99 * len(looks))] * 1e3,
            "<= 200",
            "ms",
            f"/health while {CLIENTS} clients want PNGs {LARGE}x{LARGE}, one server process, {LOOKS} looks from the process of "
            f"the clients: {told}",
        )
    ]


BENCHMARKS = (
    Benchmark(("egress_base64_vs_stdlib",), base64_rows),
    Benchmark(("egress_png_vs_default",), png_rows),
    Benchmark(("image_transport_vs_pickle",), transport_rows),
    Benchmark(("health_p99_ms_under_encode",), health_rows),
)


def serve(port: int) -> None:
    engine: Any = PaintingEngine()
    app = create_app(Serving(engine, int(time.time())))
    with socket.create_server(("127.0.0.1", port), backlog=4 * CLIENTS) as listener:
        uvicorn.Server(http_config(app, last_words_s=1)).run([listener])


if __name__ == "__main__":
    serve(int(sys.argv[1]))
