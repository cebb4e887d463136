"""A host that serves media badly, on 127.0.0.1, in the test's own event loop. What it does is named by the path it is asked for."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

MIB = 2**20

_SAID = {
    "/again": b"HTTP/1.1 301 Moved\nlocation: /again\n\n",
    "/none": b"HTTP/1.1 404 Not Found\ncontent-length: 0\n\n",
    "/html": b"HTTP/1.1 200 OK\ncontent-length: 6\ncontent-type: text/html\n\n<html>",
    "/packed": b"HTTP/1.1 200 OK\ncontent-length: 3\ncontent-encoding: gzip\n\nabc",
    "/cut": b"HTTP/1.1 200 OK\ncontent-length: 1000\n\nx",
    "/nonsense": b"SSH-2.0\n\n",
}


@dataclass
class MediaHost:
    """`asked` are the heads of requests; `open` counts connections; `sent` bytes of bodies."""

    port: int = 0
    asked: list[str] = field(default_factory=list)
    open: int = 0
    most_open: int = 0
    sent: int = 0
    leads_to: str = ""
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, path: str, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def is_left(self) -> bool:
        """Whether every connection is closed, soon."""
        for _ in range(200):
            if self.open == 0:
                return True
            await asyncio.sleep(0.02)
        return False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.asked.append(head)
            self.was_asked.set()
            with suppress(ConnectionError):
                await self._answer(head.split()[1], reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def _answer(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if path in _SAID:
            writer.write(_SAID[path].replace(b"\n", b"\r\n"))
        elif path == "/lead":
            writer.write(f"HTTP/1.1 302 Found\r\nlocation: {self.leads_to}\r\n\r\n".encode())
        elif path in ("/told-large", "/large"):
            writer.write(b"HTTP/1.1 200 OK\r\n")
            writer.write(
                b"content-length: 104857600\r\n\r\n" if path == "/told-large" else b"connection: close\r\n\r\n"
            )
            await self._pour(writer, 100)
        elif path == "/drip":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            while not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)
        elif path == "/silent":
            await reader.read()  # until the other end has gone
        else:
            await asyncio.sleep(0.1 if path.startswith("/slow") else 0)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\ncontent-type: image/png\r\n\r\npicture")
        await writer.drain()

    async def _pour(self, writer: asyncio.StreamWriter, mebibytes: int) -> None:
        for _ in range(16 * mebibytes):
            writer.write(bytes(MIB // 16))
            await writer.drain()
            self.sent += MIB // 16


@asynccontextmanager
async def media_host(tls: ssl.SSLContext | None = None) -> AsyncIterator[MediaHost]:
    """A host on a free port."""
    host = MediaHost()
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0, ssl=tls)
    host.port = server.sockets[0].getsockname()[1]
    try:
        yield host
    finally:
        server.close()
