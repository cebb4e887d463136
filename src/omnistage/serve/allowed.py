"""Where a server may read media from: hosts that its operator has named, and files below one folder. Nothing, unless told.

A host is named as HOST or HOST:PORT; without a port http's 80 and https's 443 are meant. A name must lead to public addresses
alone: else whoever owns it could have the server read what only the server can reach. An address that is named as such
(127.0.0.1:8000) is meant as it stands, and may be private: nobody but the operator can make it mean another machine. Pure, but for
the links that a path leads through. Opens nothing, resolves no names.
"""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from omnistage.core.errors import ConfigError, InvalidRequestError
from omnistage.engine.media import MediaValue, path_of_url, scheme_of

PORTS = {"http": 80, "https": 443}
DOMAINS_FLAG = "--allowed-media-domains"
PATH_FLAG = "--allowed-local-media-path"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,62}\.)*[a-z0-9_-]{1,63}", re.ASCII)
_UNWRITTEN = re.compile(r"[\x00-\x20\x7f\\]")
_WORLD = ipaddress.IPv6Network("2000::/3")
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Host:
    """A host of a URL or of the operator's list. `port` None, in the list: the scheme's own. `address` where it is named by one."""

    name: str
    port: int | None
    address: Address | None = None

    @classmethod
    def of(cls, text: str, port: int | None) -> Host | None:
        """None for what is neither a name nor an address."""
        address = address_of(text)
        if address is not None:
            return cls(str(address), port, address)
        try:
            name = text.rstrip(".").encode("idna").decode().lower()
        except UnicodeError:
            return None
        return cls(name, port) if _NAME.fullmatch(name) else None


@dataclass(frozen=True, slots=True)
class Place:
    """A URL that may be fetched. `target`: path and query as they go into the request."""

    scheme: str
    host: Host
    port: int
    target: str

    @property
    def url(self) -> str:
        name = f"[{self.host.name}]" if ":" in self.host.name else self.host.name
        return f"{self.scheme}://{name}:{self.port}{self.target}"


@dataclass(frozen=True, slots=True)
class Allowed:
    """See the module. `folder` is free of links."""

    hosts: tuple[Host, ...] = ()
    folder: Path | None = None

    @classmethod
    def of(cls, domains: Iterable[str], folder: Path | None) -> Allowed:
        """From the words of a command line. Raises ConfigError for what is no host, and for what is no folder."""
        hosts = tuple(_named_host(word.strip()) for words in domains for word in words.split(","))
        if folder is not None and not folder.is_dir():
            raise ConfigError.of(PATH_FLAG, str(folder), "a folder that exists")
        return cls(hosts, None if folder is None else folder.resolve())

    def place(self, url: str, found: MediaValue) -> Place:
        """Where `url` leads, which `found` says or was led on to. Raises InvalidRequestError unless that may be fetched."""
        place = None if _UNWRITTEN.search(url) else _place_of(url)
        if place is None:
            raise found.refusal(self.accepted)
        if not any(self._means(host, place) for host in self.hosts):
            led = "" if url == found.value else f", which leads to {place.scheme}://{place.host.name}:{place.port},"
            raise InvalidRequestError(
                f"{found.where}: {found.told}{led} is not accepted; accepted: {self.accepted}", field=found.where
            )
        return place

    def path(self, found: MediaValue) -> Path:
        """The file that a `file:` URL names, without links. Raises InvalidRequestError unless it may be read."""
        if self.folder is None:
            raise found.refusal(self.accepted)
        try:
            path = path_of_url(found).resolve()
        except (OSError, RuntimeError):  # a name that is too long, or links in a ring
            raise found.refusal(self.accepted) from None
        if not path.is_relative_to(self.folder):
            raise found.refusal(self.accepted)
        return path

    @property
    def accepted(self) -> str:
        """For messages."""
        hosts = "an http or https URL of a host that this server may fetch from" if self.hosts else ""
        files = "a file: URL below the folder that this server may read" if self.folder is not None else ""
        told = ", ".join(filter(None, ("a data: URL", hosts, files)))
        closed = " and ".join([*([] if hosts else [DOMAINS_FLAG]), *([] if files else [PATH_FLAG])])
        return f"{told} ({closed} would open more)" if closed else told

    @staticmethod
    def _means(host: Host, place: Place) -> bool:
        port = PORTS[place.scheme] if host.port is None else host.port
        return (host.name, port) == (place.host.name, place.port)


def address_of(text: str) -> Address | None:
    """The address that `text` spells; None where it spells none. Shortened forms (127.1) are names, as far as this goes."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """False for what leads back to this machine, to its network, to many, or nowhere, however it is wrapped."""
    match address:
        case ipaddress.IPv6Address(ipv4_mapped=ipaddress.IPv4Address() as inner):
            return is_public(inner)
        case ipaddress.IPv6Address() if address in _TRANSLATED:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        case ipaddress.IPv6Address():
            return address in _WORLD and address.is_global and address.sixtofour is None and address.teredo is None
        case _:
            return address.is_global and not address.is_multicast


def _named_host(word: str) -> Host:
    """Raises ConfigError."""
    name, colon, digits = word.rpartition(":")
    if (word.startswith("[") and word.endswith("]")) or not colon or address_of(word) is not None:
        name, colon, digits = word, "", ""
    bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    host = Host.of(bare, int(digits) if digits.isascii() and digits.isdecimal() else None)
    if host is None or (colon and not 0 < (host.port or 0) < 65536):
        accepted = "host names such as media.example.org, or HOST:PORT, without a scheme and a path"
        raise ConfigError.of(DOMAINS_FLAG, word, accepted)
    return host


def _place_of(url: str) -> Place | None:
    """None for what is no http or https URL, and for one that carries a user's name."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if scheme_of(url) not in PORTS or parts.hostname is None or "@" in parts.netloc:
        return None
    host = Host.of(parts.hostname, port)
    if host is None:
        return None
    path = urllib.parse.quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    query = f"?{urllib.parse.quote(parts.query, safe='/%:@!$&()*+,;=~-._?')}" if parts.query else ""
    return Place(parts.scheme.lower(), host, PORTS[parts.scheme] if port is None else port, path + query)
