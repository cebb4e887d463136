"""Where media may be read from.

Faults pinned: a host that nobody named is asked; a name stands for a private address in one of its many spellings; a path leaves
its folder by dots or links.
"""

import ipaddress
import urllib.parse
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.core.errors import ConfigError, InvalidRequestError
from omnistage.engine.media import MediaValue
from omnistage.serve.allowed import Allowed, is_public
from omnistage.serve.fetching import url_of

WHERE = "messages[0].content[0].image_url.url"


def found(value: str) -> MediaValue:
    return MediaValue("image", value, WHERE, 1000)


def place(url: str, *domains: str) -> str:
    return Allowed.of(domains, None).place(url, found(url)).url


@pytest.mark.parametrize(
    ("domains", "url", "asked"),
    [
        (["a.org"], "http://a.org", "http://a.org:80/"),
        (["a.org"], "HTTPS://A.org./x?y=1#z", "https://a.org:443/x?y=1"),
        (["a.org"], "http://a.org:80/x", "http://a.org:80/x"),
        (["b.org,a.org"], "https://a.org/%41 é", None),
        (["a.org"], "https://a.org/%41/é?ü=%20", "https://a.org:443/%41/%C3%A9?%C3%BC=%20"),
        (["a.org"], "https://a.org//evil.org/x", "https://a.org:443//evil.org/x"),
        (["a.org:8080"], "http://a.org:8080/", "http://a.org:8080/"),
        (["bücher.example"], "http://xn--bcher-kva.example/", "http://xn--bcher-kva.example:80/"),
        (["127.0.0.1:9"], "http://127.0.0.1:9/x", "http://127.0.0.1:9/x"),
        (["[::1]:9"], "http://[0:0::1]:9/x", "http://[::1]:9/x"),
        (["::1"], "http://[::1]/x", "http://[::1]:80/x"),
    ],
)
def test_what_the_operator_has_named_may_be_fetched(domains: list[str], url: str, asked: str | None) -> None:
    """Fault: capitals, dots and escapes keep out a host that was named, or another URL is asked for than was checked."""
    if asked is None:
        with pytest.raises(InvalidRequestError):
            place(url, *domains)
    else:
        assert place(url, *domains) == asked


@pytest.mark.parametrize(
    "url",
    [
        "http://b.org/",
        "http://sub.a.org/",
        "http://a.org.b.org/",
        "http://a.org:8080/",
        "http://a.org@b.org/",
        "http://b.org#a.org",
        "http://b.org\\@a.org/",
        "http://a.org\n.b.org/",
        "http://user:secret@a.org/",
        "http://user@a.org/",
        "ftp://a.org/",
        "gopher://a.org/",
        "//a.org/",
        "a.org",
        "http:///x",
        "http://",
        "http://a.org:99999/",
        "http://a.org:x/",
        "http://[::1/",
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://.org/",
        "http://" + "a" * 300 + "/",
        "http://a.org/ x",
    ],
)
def test_nothing_else_may(url: str) -> None:
    """Fault: two readers of one URL disagree on its host, and the laxer one is asked."""
    with pytest.raises(
        InvalidRequestError, match="is not accepted; accepted: a data: URL, an http or https URL"
    ) as caught:
        place(url, "a.org")
    assert caught.value.field == WHERE and len(caught.value.message) < 500


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["http://", "https://", "HTTP:/", "//", ""]), st.text("a.org:/@#?\\[]%01 \n\tø;&", max_size=40))
def test_who_connects_reads_the_same_host(scheme: str, rest: str) -> None:
    """Fault: the URL that was checked says another host, or path, to the library that connects, by a sign that only one minds."""
    allowed = Allowed.of(["a.org", "a.org:80", "a.org:1"], None)
    for url in (scheme + rest, f"{scheme}a.org{rest}"):
        try:
            place = allowed.place(url, found(url))
        except InvalidRequestError:
            continue
        asked, told = url_of(place), urllib.parse.urlsplit(place.url)
        assert (told.hostname, told.port) == ("a.org", place.port)
        assert (asked.scheme, asked.host, asked.port) == (place.scheme.encode(), b"a.org", place.port)
        assert asked.target == place.target.encode()
        assert asked.port in (80, 443, 1)


def test_a_refusal_says_what_is_closed() -> None:
    """Fault: a caller is told that a URL is wrong where no URL would be right."""
    for allowed, said in (
        (Allowed(), "accepted: a data: URL (--allowed-media-domains and --allowed-local-media-path would open more)"),
        (
            Allowed.of(["a.org"], None),
            "host that this server may fetch from (--allowed-local-media-path would open more)",
        ),
        (
            Allowed.of([], Path("/")),
            "below the folder that this server may read (--allowed-media-domains would open more)",
        ),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            allowed.place("https://b.org", found("https://b.org"))
        assert said in caught.value.message


@pytest.mark.parametrize(
    "word", ["", "http://a.org", "a.org/x", "a.org:", "a.org:0", "a.org:99999", "a b", "*.a.org", "[::1]:x", "a,,b"]
)
def test_what_is_no_host_is_refused_at_the_start(word: str) -> None:
    """Fault: a misspelt host opens nothing, or everything, without a word."""
    with pytest.raises(ConfigError, match="--allowed-media-domains"):
        Allowed.of([word], None)


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "224.0.0.1",
        "224.0.1.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1",
        "::", "::1", "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "fe80::1", "fe80::1%eth0",
        "fc00::1", "fd12::1",
        "ff0e::1", "2001:db8::1", "2002:7f00:1::", "2001:0:7f00:1::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "4000::1",
    ],
)  # fmt: skip
def test_addresses_that_lead_back_are_not_public(text: str) -> None:
    """Fault: the machine itself, its network, or a cloud's metadata in another spelling."""
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    "text", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_addresses_of_the_world_are_public(text: str) -> None:
    """Fault: nothing can be fetched at all."""
    assert is_public(ipaddress.ip_address(text))


def test_files_below_the_folder_may_be_read_and_no_others(tmp_path: Path) -> None:
    """Fault: dots, escapes or links lead out of the folder."""
    folder, outside = tmp_path / "in side", tmp_path / "outside"
    for path in (folder / "deep", outside):
        path.mkdir(parents=True)
    for path in (folder / "a.png", folder / "deep" / "b.png", outside / "c.png", tmp_path / "in sidecar"):
        path.write_bytes(b"x")
    (folder / "out").symlink_to(outside)
    (folder / "in").symlink_to(folder / "deep")
    (folder / "ring").symlink_to(folder / "ring")
    (tmp_path / "link").symlink_to(folder)
    allowed = Allowed.of([], tmp_path / "link")
    base = folder.as_uri()
    for url, name in (("a.png", "a.png"), ("deep/../a.png", "a.png"), ("in/b.png", "deep/b.png"), ("%61.png", "a.png")):
        assert allowed.path(found(f"{base}/{url}")) == folder / name
    assert allowed.path(found(f"file://{tmp_path}/link/a.png")) == folder / "a.png"
    for url in (
        "../outside/c.png",
        "%2e%2e/outside/c.png",
        "out/c.png",
        "../in%20sidecar",
        "ring/x",
        "a%00b",
    ):
        with pytest.raises(InvalidRequestError, match="is not accepted"):
            allowed.path(found(f"{base}/{url}"))
    for url in ("file:///etc/passwd", "file://other/etc/passwd", "file:etc"):
        with pytest.raises(InvalidRequestError, match="is not accepted"):
            allowed.path(found(url))
    with pytest.raises(InvalidRequestError, match="--allowed-local-media-path"):
        Allowed().path(found(f"{base}/a.png"))
    with pytest.raises(ConfigError, match=r"--allowed-local-media-path: .* a folder that exists"):
        Allowed.of([], folder / "a.png")
