"""The media of requests over HTTP, read before the engine is asked.

Faults pinned: something is fetched for a request that is refused anyway; media in another order than they were asked for; bounds
that hold for each alone; one that fails leaves the others running.
"""

import asyncio
import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnistage.core.errors import InvalidRequestError, QueueFullError
from omnistage.core.request import Media
from omnistage.engine.admission import Ask, admit
from omnistage.engine.media import MOST_OPEN_NBYTES, MediaValue
from omnistage.engine.served import ServedModel
from omnistage.serve import attachments as module
from omnistage.serve.allowed import Allowed
from omnistage.serve.attachments import AT_ONCE, Attachments
from tests.engine.models import THINKER, WRITTEN

OMNI = ServedModel("omni", (THINKER,), reads=("text", "image", "audio", "video"))
PNG = "data:image/png;base64,YWJj"


class FakeFetcher:
    """The URL's last part says what comes: "KIB-n" so many KiB, "fail", "hang", anything else itself."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.inside = self.most_inside = self.given_up = 0

    async def fetch(self, found: MediaValue, take: Callable[[int], None]) -> bytes:
        name = str(found.value).rpartition("/")[2]
        self.asked.append(name)
        self.inside += 1
        self.most_inside = max(self.inside, self.most_inside)
        try:
            await asyncio.sleep(10 if name == "hang" else 0.01)
            if name == "fail":
                raise InvalidRequestError("told to fail", field=found.where)
            for _ in range(int(name[4:]) if name.startswith("KIB-") else 0):
                take(1024)
            return bytes(1024 * int(name[4:])) if name.startswith("KIB-") else name.encode()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        finally:
            self.inside -= 1


def url(name: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"https://media.example/{name}"}}


def said(*parts: dict[str, Any], **more: Any) -> Ask:
    return Ask({"messages": [{"role": "user", "content": list(parts)}]}, **more)


def reader(folder: Path | None = None) -> tuple[Attachments, FakeFetcher]:
    fetcher = FakeFetcher()
    return Attachments(Allowed.of(["media.example"], folder), fetcher), fetcher


async def media_of(attachments: Attachments, ask: Ask, model: ServedModel = OMNI) -> tuple[Media, ...]:
    return admit(model, await attachments.attached(model, ask)).prompt.media


async def test_everything_is_read_into_its_place(tmp_path: Path) -> None:
    """Fault: the one that came first is taken for the one that was asked for first."""
    (tmp_path / "b.png").write_bytes(b"file")
    attachments, _ = reader(tmp_path)
    sound = base64.b64encode(b"RIFF....WAVE").decode()
    large = base64.b64encode(bytes(10**6)).decode()
    media = await media_of(
        attachments,
        said(
            url("hang-on"),
            {"type": "image_url", "image_url": PNG},
            {"type": "image", "image": (tmp_path / "b.png").as_uri()},
            {"type": "text", "text": "and"},
            {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
            {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{large}"}},
            url("last"),
        ),
    )
    assert [(held.kind, held.data, held.where.rpartition(".content")[2]) for held in media] == [
        ("image", b"hang-on", "[0].image_url.url"),
        ("image", b"abc", "[1].image_url"),
        ("image", b"file", "[2].image"),
        ("audio", b"RIFF....WAVE", "[4].input_audio.data"),
        ("video", bytes(10**6), "[5].video_url.url"),
        ("image", b"last", "[6].image_url.url"),
    ]


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (said(url("a"), {"type": "text", "text": 7}), "messages[0].content[1].text"),
        (
            said(url("a"), {"type": "image_url", "image_url": "ftp://media.example/b"}),
            "messages[0].content[1].image_url",
        ),
        (
            said(url("a"), {"type": "image_url", "image_url": "https://other.example/"}),
            "messages[0].content[1].image_url",
        ),
        (said(url("a"), {"type": "image", "image": "/etc/passwd"}), "messages[0].content[1].image"),
        (said(url("a"), {"type": "image", "image": {"a": 1}}), "messages[0].content[1].image"),
        (said(url("a"), {"type": "image", "image": "file:///etc/passwd"}), "messages[0].content[1].image"),
        (said(url("a"), fields={"temperature": -1}), "temperature"),
        (said(url("a"), wants=("audio",)), "modalities"),
    ],
)
async def test_nothing_is_fetched_for_what_is_wrong(ask: Ask, field: str) -> None:
    """Fault: a stranger has the server fetch by requests that it then refuses."""
    attachments, fetcher = reader()
    with pytest.raises(InvalidRequestError) as caught:
        await media_of(attachments, ask)
    assert caught.value.field == field
    assert fetcher.asked == []


async def test_a_model_of_text_pays_nothing() -> None:
    """Fault: every request is admitted twice."""
    ask = Ask("Hi")
    assert await reader()[0].attached(WRITTEN, ask) is ask


async def test_several_are_read_at_once_but_not_all() -> None:
    """Fault: one after the other, or as many connections as a request has URLs."""
    attachments, fetcher = reader()
    await media_of(attachments, said(*(url(str(index)) for index in range(12))))
    assert fetcher.most_inside == AT_ONCE
    await asyncio.gather(*(media_of(attachments, said(*(url(str(index)) for index in range(12)))) for _ in range(8)))
    assert fetcher.most_inside == module.READS


async def test_one_that_fails_ends_the_others() -> None:
    """Fault: what nobody needs any more is read on."""
    attachments, fetcher = reader()
    with pytest.raises(InvalidRequestError, match="told to fail") as caught:
        await media_of(attachments, said(url("hang"), url("fail"), url("hang")))
    assert caught.value.field == "messages[0].content[1].image_url.url"
    assert (fetcher.given_up, fetcher.inside) == (2, 0)


async def test_who_is_given_up_ends_his_reads() -> None:
    """Fault: the client has gone, and his places are taken for as long as his hosts like."""
    attachments, fetcher = reader()
    reading = asyncio.create_task(media_of(attachments, said(url("hang"), url("hang"))))
    await asyncio.sleep(0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert (fetcher.given_up, fetcher.inside) == (2, 0)


async def test_what_comes_from_elsewhere_is_bounded_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fault: each of a request's many URLs may bring as much as all of them."""
    monkeypatch.setattr(module, "MOST_NBYTES", 10 * 1024)
    attachments, _ = reader(tmp_path)
    assert len(await media_of(attachments, said(url("KIB-5"), url("KIB-5")))) == 2
    with pytest.raises(InvalidRequestError, match="at most 10240 bytes of media from elsewhere in a request"):
        await media_of(attachments, said(url("KIB-5"), url("KIB-6")))
    (tmp_path / "a").write_bytes(bytes(6 * 1024))
    file = {"type": "image_url", "image_url": (tmp_path / "a").as_uri()}
    with pytest.raises(InvalidRequestError, match="at most"):
        await media_of(attachments, said(file, url("KIB-5")))
    small = ServedModel("omni", (THINKER,), reads=("text", "image"), max_media_nbytes=1024)
    with pytest.raises(InvalidRequestError, match="at most 1024 bytes"):
        await media_of(attachments, said(url("KIB-2")), small)


async def test_no_more_is_read_while_open_requests_hold_too_much() -> None:
    """Fault: as many videos are held as callers like to send."""
    attachments, fetcher = reader()
    await attachments.attached(OMNI, said(url("a")), MOST_OPEN_NBYTES)
    with pytest.raises(QueueFullError) as caught:
        await attachments.attached(OMNI, said(url("b")), MOST_OPEN_NBYTES + 1)
    assert caught.value.retry_after_s == 1.0
    assert fetcher.asked == ["a"]
    await attachments.attached(OMNI, Ask("words"), MOST_OPEN_NBYTES + 1)


async def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    """Fault: a pipe hangs the server, a folder or a missing file is its fault, a link leads out between two looks."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    attachments, _ = reader(tmp_path)
    base = tmp_path.as_uri()
    for name, why in (("pipe", "ordinary"), ("folder", "ordinary"), ("none", "is there"), ("empty", "is empty")):
        with pytest.raises(InvalidRequestError, match=why) as caught:
            await media_of(attachments, said({"type": "image_url", "image_url": f"{base}/{name}"}))
        assert caught.value.field == "messages[0].content[0].image_url"
    with pytest.raises(InvalidRequestError, match="is there"):
        await media_of(attachments, said({"type": "image_url", "image_url": f"{base}/{'x' * 5000}"}))
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(InvalidRequestError, match="at most 67108864 bytes"):
        await media_of(attachments, said({"type": "image_url", "image_url": f"{base}/large"}))


async def test_a_file_is_looked_at_once_more_when_it_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a folder on the way becomes a link after it was checked."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_bytes(b"secret")
    (tmp_path / "in" / "way").symlink_to(tmp_path / "out")
    attachments, _ = reader(tmp_path / "in")
    # As if the check had seen an ordinary folder.
    monkeypatch.setattr(Allowed, "path", lambda self, found: tmp_path / "in" / "way" / "a")
    with pytest.raises(InvalidRequestError, match="an ordinary file"):
        await media_of(attachments, said({"type": "image_url", "image_url": "file:///x"}))
