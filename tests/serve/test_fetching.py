"""Fetching from hosts that mean well and from others.

Faults pinned: a name that leads inside; a host that leads on to one that was not allowed; what is vetted is not what is connected
to; bodies without end; slowness without end; connections that are left behind.
"""

import asyncio
import socket
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpcore
import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.engine.media import MediaValue
from omnistage.serve import fetching
from omnistage.serve.allowed import Allowed
from omnistage.serve.fetching import Fetcher
from tests.serve.hosts import MIB, MediaHost, media_host

WHERE = "messages[0].content[0].image_url.url"


def found(url: str, most_nbytes: int = 1000) -> MediaValue:
    return MediaValue("image", url, WHERE, most_nbytes)


def fetcher(host: MediaHost, *more: str, **given: Any) -> Fetcher:
    return Fetcher(Allowed.of([f"127.0.0.1:{host.port}", *more], None), **given)


class Names:
    """A resolver that knows these names. `asked` are those that it was asked for."""

    def __init__(self, **addresses: str) -> None:
        self.asked: list[str] = []
        self._addresses = addresses

    async def __call__(self, name: str, port: int) -> list[str]:
        self.asked.append(name)
        return self._addresses[name.replace(".", "_")].split()


class Taken:
    """Counts, and refuses beyond a bound."""

    def __init__(self, most: int = 10**9) -> None:
        self.nbytes, self._most = 0, most

    def __call__(self, nbytes: int) -> None:
        self.nbytes += nbytes
        if self.nbytes > self._most:
            raise InvalidRequestError("too large", field=WHERE)


async def refusal(fetching_of: Fetcher, url: str, **more: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        await fetching_of.fetch(found(url, **more), Taken(2 * MIB))
    assert caught.value.field == WHERE
    return caught.value.message


async def test_what_is_there_is_fetched_and_nothing_is_told_of_the_server() -> None:
    """Fault: other bytes; credentials, cookies or packed content are asked for; a connection stays open."""
    async with media_host() as host:
        taken = Taken()
        assert await fetcher(host).fetch(found(host.url("/a%20b;e?c=d")), taken) == b"picture"
        assert taken.nbytes == 7
        [head] = host.asked
        assert head.startswith("GET /a%20b;e?c=d HTTP/1.1\r\n")
        names = {line.split(":")[0].lower() for line in head.splitlines()[1:] if line}
        assert names == {"host", "user-agent", "accept", "accept-encoding", "connection"}
        assert f"Host: 127.0.0.1:{host.port}" in head and "Accept-Encoding: identity" in head
        assert await host.is_left()


async def test_a_host_may_lead_on_a_few_times_to_what_is_allowed() -> None:
    """Fault: no redirect is followed, or a ring of them for ever."""
    async with media_host() as host, media_host() as other:
        host.leads_to = other.url("/picture")
        both = fetcher(host, f"127.0.0.1:{other.port}")
        assert await both.fetch(found(host.url("/lead")), Taken()) == b"picture"
        host.leads_to = "/relative"
        assert await both.fetch(found(host.url("/lead")), Taken()) == b"picture"
        assert host.asked[-1].startswith("GET /relative ")
        count = len(host.asked)
        assert "it leads on more than 3 times" in await refusal(both, host.url("/again"))
        assert len(host.asked) == count + 4


@pytest.mark.parametrize(
    "leads_to",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://localhost:PORT/picture",
        "http://127.0.0.1:1/",
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "//evil.example/x",
        "http://[::1",
        "http://user@127.0.0.1:PORT/",
        "data:image/png;base64,YWJj",
    ],
)
async def test_a_host_cannot_lead_to_what_is_not_allowed(leads_to: str) -> None:
    """Fault: the first URL is checked, the second is followed."""
    async with media_host() as host:
        host.leads_to = leads_to.replace("PORT", str(host.port))
        assert "is not accepted; accepted: a data: URL" in await refusal(fetcher(host), host.url("/lead"))
        assert len(host.asked) == 1


@pytest.mark.parametrize(
    "addresses", ["127.0.0.1", "8.8.8.8 127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "?", ""]
)
async def test_a_name_that_leads_inside_is_not_followed(addresses: str) -> None:
    """Fault: an allowed name is pointed at this machine, alone or among others, and what only this machine can read is read."""
    async with media_host() as host:
        inside = fetcher(host, f"media.example:{host.port}", resolve=Names(media_example=addresses))
        told = await refusal(inside, host.url("/picture", "media.example"))
        assert "its host has an address that is not public" in told
        assert host.asked == []
        host.leads_to = host.url("/picture", "media.example")
        assert "not public" in await refusal(inside, host.url("/lead"))
        assert len(host.asked) == 1


async def test_the_system_s_own_names_are_vetted_too() -> None:
    """Fault: a resolver that only tests have is looked at, and the real one's answers are not."""
    async with media_host() as host:
        told = await refusal(fetcher(host, f"localhost:{host.port}"), host.url("/picture", "localhost"))
        assert "its host has an address that is not public" in told and host.asked == []


async def test_the_connection_is_made_to_the_vetted_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the name is resolved a second time to connect, and has another answer by then. (The address of the world is this
    machine's for the length of this test.)"""
    asked: list[tuple[str, int]] = []
    connect = httpcore.AnyIOBackend.connect_tcp

    async def diverted(self: Any, host: str, port: int, *rest: Any) -> Any:
        asked.append((host, port))
        if host == "8.8.4.4":
            raise httpcore.ConnectError("unreachable")
        return await connect(self, "127.0.0.1", port, *rest)

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", diverted)
    async with media_host() as host:
        resolve = Names(media_example="8.8.4.4 8.8.8.8")
        outside = fetcher(host, f"media.example:{host.port}", resolve=resolve)
        assert await outside.fetch(found(host.url("/picture", "media.example")), Taken()) == b"picture"
        assert resolve.asked == ["media.example"]
        assert asked == [("8.8.4.4", host.port), ("8.8.8.8", host.port)]
        assert f"Host: media.example:{host.port}" in host.asked[0]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/none", "its host answers 404"),
        ("/html", "'text/html' is not accepted; accepted: image/*"),
        ("/packed", "packs the content"),
        ("/told-large", "104857600 bytes are not accepted; accepted: at most 1000 bytes"),
        ("/large", "too large"),
        ("/cut", "broke off"),
        ("/nonsense", "speaks no HTTP"),
    ],
)
async def test_an_answer_that_is_none_is_refused(path: str, said: str) -> None:
    """Fault: an error page is taken for a picture; a body is held before it is counted; a fault of a stranger's becomes ours."""
    async with media_host() as host:
        assert said in await refusal(fetcher(host), host.url(path))
        assert host.sent < 12 * MIB  # what was under way
        assert await host.is_left()


async def test_hosts_that_are_not_there() -> None:
    """Fault: an unreachable host is a fault of the server, or tells what its network looks like."""
    async with media_host() as host:
        port = host.port
    gone = Fetcher(Allowed.of([f"127.0.0.1:{port}", "nowhere.invalid"], None), resolve=_unknown)
    assert "its host cannot be reached" in await refusal(gone, f"http://127.0.0.1:{port}/")
    assert "its host is not known" in await refusal(gone, "http://nowhere.invalid/")


async def _unknown(name: str, port: int) -> list[str]:
    raise socket.gaierror(-2, "Name or service not known")


@pytest.mark.parametrize("path", ["/drip", "/silent"])
async def test_a_slow_host_has_a_deadline(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a byte now and then keeps a request, and its connection, for ever."""
    monkeypatch.setattr(fetching, "FETCH_S", 0.3)
    async with media_host() as host:
        assert "took longer than 0.3 s" in await refusal(fetcher(host), host.url(path))
        assert await host.is_left()


async def test_a_fetch_that_is_given_up_leaves_no_connection() -> None:
    """Fault: the client has gone and its video is read to the end."""
    async with media_host() as host:
        task = asyncio.create_task(fetcher(host).fetch(found(host.url("/drip")), Taken()))
        await host.was_asked.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert await host.is_left()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for media.example, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=media.example"
    )
    more = ["-addext", "subjectAltName=DNS:media.example", "-keyout", str(folder / "key"), "-out", str(folder / "cert")]
    try:
        subprocess.run([*command.split(), *more], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl, which makes the certificate, is not installed")
    return folder


async def test_tls_checks_the_name_although_an_address_is_connected_to(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: whoever sits at the address is believed; or the name is lost and no certificate fits."""
    connect = httpcore.AnyIOBackend.connect_tcp

    async def diverted(self: Any, host: str, port: int, *rest: Any) -> Any:
        return await connect(self, "127.0.0.1", port, *rest)

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", diverted)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate / "cert", certificate / "key")
    trusting = ssl.create_default_context(cafile=str(certificate / "cert"))
    async with media_host(server) as host:
        allowed = [f"media.example:{host.port}", f"other.example:{host.port}"]
        resolve = Names(media_example="8.8.8.8", other_example="8.8.8.8")
        known = fetcher(host, *allowed, resolve=resolve, tls=trusting)
        assert await known.fetch(found(host.url("/a", "media.example", "https")), Taken()) == b"picture"
        assert "cannot be reached" in await refusal(known, host.url("/a", "other.example", "https"))
        unknown = fetcher(host, *allowed, resolve=resolve)
        assert "cannot be reached" in await refusal(unknown, host.url("/a", "media.example", "https"))
        assert len(host.asked) == 1
