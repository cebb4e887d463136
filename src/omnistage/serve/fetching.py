"""Reading media from other hosts over HTTP. The one place that makes connections of a request's choosing.

Each hop, the first and every one that a host leads on to, must be allowed (serve.allowed); its name is resolved here, all its
addresses are vetted, and the connection is made to a vetted address itself: what the name says a moment later changes nothing.
What comes is counted as it comes. Nothing is unpacked, kept, or sent along: no cookies, no credentials, and no proxies of the
environment's.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import httpcore

from omnistage import __version__
from omnistage.core.errors import InvalidRequestError
from omnistage.engine.encoded import require_size, require_type
from omnistage.engine.media import MediaValue
from omnistage.serve.allowed import Allowed, Place, address_of, is_public

MOST_HOPS = 4
"""Of one URL: itself, and three to which it leads."""
FETCH_S = 30.0
"""How long one may take, all hops together."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a name. Raises OSError where there are none."""

_REDIRECTS = (301, 302, 303, 307, 308)
_PLAIN = ("", "identity")
_STEP_S = 10.0  # to connect, and between two pieces


class ForbiddenAddressError(Exception):
    """A name leads to an address that is not public."""


class Fetcher:
    """`resolve` and `tls` are the system's unless others are given. Belongs to one event loop."""

    def __init__(self, allowed: Allowed, *, resolve: Resolve | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._allowed = allowed
        self._resolve = resolve or _resolved
        self._tls = tls

    async def fetch(self, found: MediaValue, take: Callable[[int], None]) -> bytes:
        """What the URL of `found` leads to, which it names as its value. `take` is told of every piece's bytes before it is
        kept, and may raise. Raises InvalidRequestError for whatever goes wrong."""
        try:
            async with asyncio.timeout(FETCH_S):
                return await self._followed(found, take)
        except TimeoutError:
            raise _failure(found, f"it took longer than {FETCH_S:g} s") from None
        except ForbiddenAddressError:
            raise _failure(found, "its host has an address that is not public") from None
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            raise _failure(found, _reason(error)) from None

    async def _followed(self, found: MediaValue, take: Callable[[int], None]) -> bytes:
        url = str(found.value)
        for _ in range(MOST_HOPS):
            place = self._allowed.place(url, found)
            answer = await self._asked(place, found, take)
            if isinstance(answer, bytes):
                return answer
            url = _joined(place.url, answer)
        raise _failure(found, f"it leads on more than {MOST_HOPS - 1} times")

    async def _asked(self, place: Place, found: MediaValue, take: Callable[[int], None]) -> bytes | str:
        """The content of a place, or the URL to which it leads on."""
        backend = _VettedBackend(place, self._resolve)
        tls = await self._context() if place.scheme == "https" else None
        # One connection, for one request: what was vetted for it serves no other.
        async with httpcore.AsyncConnectionPool(ssl_context=tls, network_backend=backend, max_connections=1) as pool:
            request: dict[str, Any] = {
                "method": "GET",
                "url": url_of(place),
                "headers": _headers(place),
                "extensions": {"timeout": dict.fromkeys(("connect", "read", "write", "pool"), _STEP_S)},
            }
            async with pool.stream(**request) as response:
                headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
                if response.status in _REDIRECTS and headers.get("location"):
                    return headers["location"]
                _check(response.status, headers, found)
                data = bytearray()
                async for piece in response.aiter_stream():
                    take(len(piece))
                    data += piece
                return bytes(data)

    async def _context(self) -> ssl.SSLContext:
        if self._tls is None:  # reads all certificates there are, which takes tens of milliseconds
            self._tls = await asyncio.to_thread(httpcore.default_ssl_context)
        return self._tls


class _VettedBackend(httpcore.AnyIOBackend):
    """Connects to a vetted address of `place`, and to nothing else. TLS goes on to check the name."""

    def __init__(self, place: Place, resolve: Resolve) -> None:
        super().__init__()
        self._place = place
        self._resolve = resolve

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._addresses()
        for address in addresses[:-1]:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await super().connect_tcp(address, self._place.port, timeout, local_address, socket_options)
        return await super().connect_tcp(addresses[-1], self._place.port, timeout, local_address, socket_options)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise ForbiddenAddressError(path)

    async def _addresses(self) -> list[str]:
        """Raises ForbiddenAddressError if a single one of a name's addresses is not public: its owner means no good."""
        host = self._place.host
        if host.address is not None:  # the operator has named it
            return [host.name]
        addresses = await self._resolve(host.name, self._place.port)
        vetted = [address_of(address) for address in addresses]
        if not vetted or any(address is None or not is_public(address) for address in vetted):
            raise ForbiddenAddressError(host.name)
        return list(dict.fromkeys(map(str, vetted)))


async def _resolved(name: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def url_of(place: Place) -> httpcore.URL:
    """Out of the parts that were vetted: who reads a URL's text again might read it otherwise."""
    scheme, host, target = (part.encode() for part in (place.scheme, place.host.name, place.target))
    return httpcore.URL(scheme=scheme, host=host, port=place.port, target=target)


def _joined(url: str, led: str) -> str:
    """Where `led` leads from `url`; what is no URL at all is left as it is, to be refused."""
    try:
        return urllib.parse.urljoin(url, led)
    except ValueError:
        return led


def _headers(place: Place) -> list[tuple[str, str]]:
    name = f"[{place.host.name}]" if ":" in place.host.name else place.host.name
    standard = {"http": 80, "https": 443}[place.scheme] == place.port
    return [
        ("Host", name if standard else f"{name}:{place.port}"),
        ("User-Agent", f"omnistage/{__version__}"),
        ("Accept", "*/*"),
        ("Accept-Encoding", "identity"),
        ("Connection", "close"),
    ]


def _check(status: int, headers: dict[str, str], found: MediaValue) -> None:
    """Raises InvalidRequestError for an answer that is none, or not of the kind, or too large."""
    if status != 200:
        raise _failure(found, f"its host answers {status}")
    if headers.get("content-encoding", "").strip().lower() not in _PLAIN:
        raise _failure(found, "its host packs the content although it was asked not to")
    require_type(found.kind, headers.get("content-type", ""), found.where)
    length = headers.get("content-length", "")
    if length.isascii() and length.isdecimal():
        require_size(int(length[:18]), found.where, found.most_nbytes)


def _reason(error: Exception) -> str:
    """In a few words, of which none is a secret of this machine's network."""
    match error:
        case socket.gaierror():
            return "its host is not known"
        case httpcore.TimeoutException():
            return f"its host said nothing for {_STEP_S:g} s"
        case httpcore.ConnectError() | OSError():
            return "its host cannot be reached, or its certificate is not trusted"
        case _:
            return "its host broke off, or speaks no HTTP"


def _failure(found: MediaValue, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"{found.where}: {found.told} cannot be fetched: {why}", field=found.where)
