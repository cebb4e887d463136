"""A served fake: the app over a runtime without stages, called in the process or over a real port."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
from starlette.types import ASGIApp

from omnistage.engine.async_omni_engine import AsyncOmniEngine
from omnistage.engine.served import ServedModel
from omnistage.obs.metrics import ServerMetrics
from omnistage.serve.app import create_app
from omnistage.serve.boot import Server, bound_socket
from omnistage.serve.connection import http_config
from omnistage.serve.serving import Serving, figures_of
from tests.engine.models import SPOKEN
from tests.fakes_runtime import FakeRuntime
from tests.runtime.harness import eventually

CHAT = [{"role": "user", "content": "Hi"}]


def serving_of(
    runtime: FakeRuntime, model: ServedModel = SPOKEN, *, api_key: str | None = None, debug: bool = False
) -> Serving:
    """What routes need, with metrics that are fed as a real server's are."""
    metrics = ServerMetrics()
    engine = AsyncOmniEngine(model, runtime, observer=lambda record: metrics.ended(figures_of(record)))
    return Serving(engine, 1_700_000_000, metrics, api_key, max_body_nbytes=20_000, debug=debug)


def client_of(serving: Serving) -> httpx.AsyncClient:
    """A client of the app in this process. An error of our own comes as the response that clients get."""
    transport = httpx.ASGITransport(create_app(serving), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


@contextmanager
def live(serving: Serving, app: ASGIApp | None = None) -> Iterator[str]:
    """The base address of the app, or of another one, on a free port, served from a thread."""
    listener = bound_socket("127.0.0.1", 0)
    port = listener.getsockname()[1]
    servers: list[tuple[Server, asyncio.AbstractEventLoop]] = []
    listening = threading.Event()

    async def run() -> None:
        server = Server(http_config(app or create_app(serving), last_words_s=1))
        servers.append((server, asyncio.get_running_loop()))
        running = asyncio.create_task(server.serve([listener]))
        await server.listening.wait()
        listening.set()
        await running

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert listening.wait(10)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server, loop = servers[0]
        loop.call_soon_threadsafe(server.stop)
        thread.join(10)


def ask_and_leave(base: str, path: str, body: dict[str, Any], runtime: FakeRuntime) -> None:
    """A client that goes once its request has come to the runtime, and the beginning of the answer to it if that is streamed."""
    url, content = httpx.URL(base), json.dumps(body)
    with closing(socket.create_connection((url.host, url.port), 10)) as client:
        client.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n{content}".encode())
        assert eventually(lambda: bool(runtime.submitted), 10.0)
        assert not body["stream"] or client.recv(1)
