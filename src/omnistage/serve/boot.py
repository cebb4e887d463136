"""A server's life: the port is taken first and answers from its first moment; then the rest is loaded; a signal ends it.

The first signal lets open requests end, for at most the drain time; a second one ends everything at once (workers end with
this process), and so does the first one END_S after the drain time, whatever hangs then. This module imports neither the web
framework nor the engine: they load while the port answers 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import json
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Generator
from typing import Any

import uvicorn

from omnistage.core.errors import ConfigError, OmniError, StageUnavailableError
from omnistage.obs.process import give_large_memory_back
from omnistage.serve.connection import http_config
from omnistage.serve.options import ServeOptions

_TICK_S = 1.0
_BACKLOG = 2048
_UNREAD_MS = 120_000
"""After so long without anything taken of what it was sent, a client is cut off."""
_FORCED_EXIT = 1
END_S = 15.0
"""How long the end may take beside the drain time: the engine's own deadlines come to 10 s, and clients have 2 s for last words."""
_LAST_WORDS_S = 2
"""How long clients have to read what they were sent, once everything has ended."""
_LOADER = "omnistage.serve.load"


class FrontState:
    """The app that the port answers with: a 503 of its own until `app` is there."""

    def __init__(self) -> None:
        self.app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.app is not None:
            # A client that does not read what it is sent is given up at the end of a server, without a traceback.
            with contextlib.suppress(asyncio.CancelledError):
                await self.app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"retry-after", b"1")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(starting(scope["path"])).encode()})


def starting(path: str) -> dict[str, Any]:
    """What a server says that has not read its configuration yet: /health in its own form, the rest as an error object."""
    if path == "/health":
        return {"status": "starting", "stages": {}}
    message = "the server is starting"
    return {"error": {"message": message, "type": "server_error", "param": None, "code": "stage_unavailable"}}


class Server(uvicorn.Server):
    """uvicorn's server, told to stop by an event instead of its own signal handlers and its ten looks a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        while not self._stopping.is_set():
            await self.on_tick(0)  # renews the Date header
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _TICK_S)

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigError if the address is taken or is none of this machine's."""
    if not 0 <= port <= 65535:
        raise ConfigError.of("port", port, "an integer in [0, 65535]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)  # accepted connections inherit it
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError.of("port", port, f"a free port; another program listens on {host}:{port}") from None
        raise ConfigError.of("host", host, f"an address of this machine that may be used ({error.strerror})") from None
    return listener


def serve(options: ServeOptions) -> int:
    """Serves until a signal comes; the exit code. Raises ConfigError and what else keeps a server from starting."""
    give_large_memory_back()
    watchdog = Watchdog()
    try:
        return asyncio.run(_serve(bound_socket(options.host, options.port), options, watchdog))
    finally:
        watchdog.stop()


async def _serve(listener: socket.socket, options: ServeOptions, watchdog: Watchdog) -> int:
    front = FrontState()
    server = Server(http_config(front, last_words_s=_LAST_WORDS_S))
    ending = asyncio.Event()
    _on_signals(ending.set, watchdog.start)
    serving = asyncio.create_task(server.serve([listener]))
    await server.listening.wait()
    try:
        loaded = await asyncio.to_thread(lambda: importlib.import_module(_LOADER).load(options))
    except OmniError:
        server.stop()
        await serving
        raise
    watchdog.drain_timeout_s = loaded.drain_timeout_s
    front.app = loaded.app
    _say(f"listening on http://{options.host}:{listener.getsockname()[1]} (model {options.model})")
    try:
        await _end_or_failure(loaded.engine, ending)
    finally:  # the engine ends first, so that every open request still gets its answer or its error
        watchdog.start()
        await loaded.engine.close(loaded.drain_timeout_s)
        server.stop()
        await serving
    return 0


async def _end_or_failure(engine: Any, ending: asyncio.Event) -> None:
    """Returns at a signal. Raises StageUnavailableError where a stage does not come up at all, and where the engine itself has
    failed, so that whoever watches over this process starts it anew; what dies later is the engine's to start anew, and
    /health's to tell."""
    told = asyncio.create_task(ending.wait())
    loading = asyncio.create_task(engine.settled())
    await asyncio.wait({told, loading}, return_when=asyncio.FIRST_COMPLETED)
    if not told.done() and "down" in loading.result().stages.values():
        try:
            engine.check_health()
        except StageUnavailableError as error:
            raise StageUnavailableError(f"the stages did not start: {error.message}") from None
    stopped = asyncio.create_task(engine.stopped())
    await asyncio.wait({told, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not told.done():
        raise StageUnavailableError(f"the engine has stopped: {stopped.result().trouble}")


class Watchdog:
    """Ends this process where it has not ended by itself in time, from a thread of its own: what hangs may be the event loop.
    Before everything is loaded nothing is open, and there is no drain time."""

    def __init__(self) -> None:
        self.drain_timeout_s = 0.0
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """The time runs from the first call."""
        if self._timer is None:
            allowed_s = self.drain_timeout_s + END_S
            self._timer = threading.Timer(allowed_s, self._end, [allowed_s])
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        """It has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, allowed_s: float) -> None:
        _say(f"has not ended within {allowed_s:g} s, and is ended now")
        os._exit(_FORCED_EXIT)


def _on_signals(*at_first: Callable[[], None]) -> None:
    """The first signal stops in order, the second at once."""
    loop = asyncio.get_running_loop()
    seen: list[int] = []

    def handle(number: int) -> None:
        seen.append(number)
        if len(seen) > 1:
            os._exit(_FORCED_EXIT)
        for call in at_first:
            call()
        _say("ending; open requests may finish, a second signal ends at once")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle, number)


def _say(text: str) -> None:
    """On standard error, if somebody reads it: that whoever started the server has gone, or does not look at what it says, is no
    reason to fail or to wait."""
    with contextlib.suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, f"omnistage: {text}\n".encode())
