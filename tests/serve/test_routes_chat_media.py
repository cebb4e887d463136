"""POST /v1/chat/completions with pictures, sounds and videos, up to what the engine is asked.

Faults pinned: media that do not arrive, or in another place; a refusal without the part's name; a client that leaves while its
media are fetched; megabytes that hold up everybody else.
"""

import asyncio
import base64
import io
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import soundfile

from omnistage.core.request import Media
from omnistage.engine.served import ServedModel
from omnistage.serve import attachments as attachments_module
from omnistage.serve.allowed import Allowed
from omnistage.serve.attachments import Attachments
from omnistage.serve.fetching import Fetcher
from omnistage.serve.protocol import strict
from omnistage.serve.serving import MAX_BODY_NBYTES, Serving
from tests.engine.models import SPOKEN
from tests.fakes_runtime import FakeRuntime
from tests.serve.hosts import media_host
from tests.serve.live import client_of, live, serving_of

PATH = "/v1/chat/completions"
OMNI = replace(SPOKEN, reads=("text", "image", "audio", "video"))
AT = "messages[0].content[0]"


def serving(runtime: FakeRuntime, *domains: str, model: ServedModel = OMNI) -> Serving:
    allowed = Allowed.of(domains, None)
    attachments = Attachments(allowed, Fetcher(allowed) if domains else None)
    return replace(serving_of(runtime, model), attachments=attachments, max_body_nbytes=MAX_BODY_NBYTES)


def said(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], **more}


def url(kind: str, address: str) -> dict[str, Any]:
    return {"type": f"{kind}_url", f"{kind}_url": {"url": address}}


def wav() -> str:
    file = io.BytesIO()
    soundfile.write(file, [0.0] * 100, 16000, format="WAV")
    return base64.b64encode(file.getvalue()).decode()


async def test_media_reach_the_engine_in_place() -> None:
    """Fault: what was sent and what was fetched are mixed up; an option of the processor is dropped."""
    runtime = FakeRuntime()
    async with media_host() as host, client_of(serving(runtime, f"127.0.0.1:{host.port}")) as client:
        body = said(
            url("image", host.url("/slow")),
            {"type": "text", "text": "and"},
            {"type": "input_audio", "input_audio": {"data": wav(), "format": "wav"}},
            url("video", "data:video/mp4;base64,YWJj"),
            mm_processor_kwargs={"use_audio_in_video": True},
        )
        response = await client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    [request] = runtime.submitted
    assert request.prompt.mm_processor_kwargs == {"use_audio_in_video": True}
    assert request.prompt.messages is not None
    assert request.prompt.messages[0]["content"] == [
        {"type": "image", "media": 0},
        {"type": "text", "text": "and"},
        {"type": "audio", "media": 1},
        {"type": "video", "media": 2},
    ]
    assert request.prompt.media == (
        Media(kind="image", data=b"picture", where="messages[0].content[0].image_url.url"),
        Media(kind="audio", data=base64.b64decode(wav()), where="messages[0].content[2].input_audio.data"),
        Media(kind="video", data=b"abc", where="messages[0].content[3].video_url.url"),
    )


def test_the_official_client_s_forms() -> None:
    """Fault: what OpenAI's own client sends is not what is read."""
    runtime = FakeRuntime()
    with live(serving(runtime)) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        image = "data:image/png;base64,YWJj"
        answer = client.chat.completions.create(
            model="talker",
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is it?"},
                        {"type": "image_url", "image_url": {"url": image, "detail": "auto"}},
                        {"type": "input_audio", "input_audio": {"data": wav(), "format": "wav"}},
                    ],
                }
            ],
        )
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                model="talker",
                messages=[
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a"}}]}
                ],
            )
    assert answer.choices[0].message.content
    assert [media.kind for media in runtime.submitted[0].prompt.media] == ["image", "audio"]
    assert caught.value.param == f"{AT}.image_url.url"
    assert "--allowed-media-domains" in str(caught.value)


@pytest.mark.parametrize(
    ("part", "field", "accepted"),
    [
        (url("image", "data:image/png;base64,YW"), f"{AT}.image_url.url", "RFC 4648"),
        (url("image", "data:text/plain;base64,YWJj"), f"{AT}.image_url.url", "image/*"),
        (url("image", "data:image/png;base64,"), f"{AT}.image_url.url", "an encoded image"),
        (url("image", "ftp://host/a.png"), f"{AT}.image_url.url", "a data: URL, an http or https URL"),
        (url("image", "file:///etc/passwd"), f"{AT}.image_url.url", "--allowed-local-media-path"),
        (url("image", "/etc/passwd"), f"{AT}.image_url.url", "a data: URL"),
        (url("image", "http://169.254.169.254/"), f"{AT}.image_url.url", "that this server may fetch from"),
        (url("image", "http://localhost/"), f"{AT}.image_url.url", "that this server may fetch from"),
        (url("image", "HOST/html"), f"{AT}.image_url.url", "image/*"),
        (url("image", "HOST/none"), f"{AT}.image_url.url", "answers 404"),
        (url("image", "HOST/large"), f"{AT}.image_url.url", "at most 67108864 bytes of media from elsewhere"),
        (url("video", "HOST/told-large"), f"{AT}.video_url.url", "at most 67108864 bytes"),
        ({"type": "input_audio", "input_audio": {"data": wav(), "format": "mp3"}}, f"{AT}.input_audio.format", "wav"),
        (
            {"type": "input_audio", "input_audio": {"data": wav(), "format": "aiff"}},
            f"{AT}.input_audio.format",
            "wav, mp3",
        ),
        ({"type": "file", "file": {"file_id": "x"}}, f"{AT}.type", "image_url"),
    ],
)
async def test_a_part_that_is_wrong_is_refused_by_name(part: dict[str, Any], field: str, accepted: str) -> None:
    """Fault: 500, a hang, or a refusal that does not say which of many parts it means."""
    runtime = FakeRuntime()
    async with media_host() as host, client_of(serving(runtime, f"127.0.0.1:{host.port}")) as client:
        kind = part["type"]
        if kind.endswith("_url"):
            part = url(kind[:-4], part[kind]["url"].replace("HOST", f"http://127.0.0.1:{host.port}"))
        response = await client.post(PATH, json=said(part))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == field
    assert accepted in error["message"] and len(error["message"]) < 600
    assert runtime.submitted == []


async def test_a_body_of_100_megabytes_is_not_held() -> None:
    """Fault: what will be refused is read to its end."""
    pulled = 0

    async def body() -> Any:
        nonlocal pulled
        for _ in range(100):
            pulled += 1
            yield b"x" * 2**20

    async with client_of(serving(FakeRuntime())) as client:
        response = await client.post(PATH, content=body())
    assert response.status_code == 413
    assert pulled <= 34


async def test_a_client_that_leaves_ends_the_fetch() -> None:
    """Fault: what nobody waits for any more is fetched on, and then computed."""
    runtime = FakeRuntime()
    async with media_host() as host:
        with live(serving(runtime, f"127.0.0.1:{host.port}")) as address:
            async with httpx.AsyncClient() as client:
                asking = asyncio.create_task(
                    client.post(f"{address}{PATH}", json=said(url("image", host.url("/drip"))))
                )
                await host.was_asked.wait()
                assert host.open == 1
                asking.cancel()
            assert await host.is_left()
    assert runtime.submitted == []


async def test_large_media_are_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: megabytes of JSON and base64 are read on the event loop, and /health waits until that is done."""
    threads: dict[str, list[bool]] = {"parse": [], "read_given": []}

    def watch(module: Any, name: str) -> None:
        work = getattr(module, name)

        def watched(*words: Any) -> Any:
            threads[name].append(threading.current_thread() is threading.main_thread())
            return work(*words)

        monkeypatch.setattr(module, name, watched)

    watch(strict, "parse")
    watch(attachments_module, "read_given")
    runtime = FakeRuntime()
    async with client_of(serving(runtime)) as client:
        for data in (b"abc", bytes(10**6)):
            sent = f"data:video/mp4;base64,{base64.b64encode(data).decode()}"
            assert (await client.post(PATH, json=said(url("video", sent)))).status_code == 200
    assert threads == {"parse": [True, False], "read_given": [True, False]}
    assert len(runtime.submitted[1].prompt.media[0].data) == 10**6


async def test_files_below_an_open_folder(tmp_path: Path) -> None:
    """Fault: a flag without an effect."""
    (tmp_path / "a.png").write_bytes(b"pixels")
    runtime = FakeRuntime()
    opened = replace(serving(runtime), attachments=Attachments(Allowed.of([], tmp_path)))
    async with client_of(opened) as client:
        response = await client.post(PATH, json=said(url("image", (tmp_path / "a.png").as_uri())))
        refused = await client.post(PATH, json=said(url("image", "file:///etc/passwd")))
    assert response.status_code == 200 and refused.status_code == 400
    assert runtime.submitted[0].prompt.media[0].data == b"pixels"
