"""Pictures, sounds and videos all the way: over HTTP at a real server, from Python, on the command line.

Faults pinned: other bytes reach the processor than were sent; a file that kills, hangs or swells takes others along; media lie in
records or logs; a process is left behind.
"""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from omnistage import Omni
from omnistage.models.registry import REGISTRY
from tests.faults.server import ServerProcess, eventually
from tests.media.family import description
from tests.serve.hosts import media_host

SOUND = b"RIFF\x00\x00\x00\x00WAVEsound"
MARK = b"a mark that stands in no log"
LIMITS = ("--stage-0-step-timeout-s", "2", "--stage-0-processor-memory-nbytes", str(256 * 2**20))


def data_url(kind: str, data: bytes) -> dict[str, Any]:
    return {"type": f"{kind}_url", f"{kind}_url": {"url": f"data:{kind}/x;base64,{base64.b64encode(data).decode()}"}}


def asked(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], **more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Open to the server: media and the record of events."""
    folder = tmp_path_factory.mktemp("media")
    (folder / "open").mkdir()
    (folder / "open" / "a.mp4").write_bytes(b"moving pictures")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    flags = ["--allowed-local-media-path", str(folder / "open"), "--record-events", str(folder / "events"), *LIMITS]
    running = ServerProcess(folder, *flags, model="media", prefix=(sys.executable, "-m", "tests.media.served"))
    try:
        running.wait_ready()
        yield running
    finally:
        running.process.terminate()
        running.process.wait(30)
        left = running.pids
        assert eventually(lambda: not left(), 10), "processes outlive the server"


async def answers(server: ServerProcess, *bodies: dict[str, Any]) -> list[httpx.Response]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        return await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for body in bodies))


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def test_the_official_client_shows_a_picture_and_plays_a_sound(server: ServerProcess, folder: Path) -> None:
    """Fault: what official clients send does not arrive byte for byte, or in another order."""
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
    messages: Any = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, data_url("image", b"pixels" + MARK)]},
        {"role": "assistant", "content": "two"},
        {
            "role": "user",
            "content": [
                {"type": "input_audio", "input_audio": {"data": base64.b64encode(SOUND).decode(), "format": "wav"}},
                {"type": "video_url", "video_url": {"url": (folder / "open" / "a.mp4").as_uri()}},
                {"type": "text", "text": "three"},
            ],
        },
    ]
    more = {"mm_processor_kwargs": {"use_audio_in_video": True}}
    answer = client.chat.completions.create(model="media", messages=messages, extra_body=more)
    expected = ["one", description("image", b"pixels" + MARK), "two", description("audio", SOUND)]
    expected += [description("video", b"moving pictures"), "three", "use_audio_in_video=True"]
    assert answer.choices[0].message.content == " ".join(expected)
    streamed = client.chat.completions.create(model="media", messages=messages, extra_body=more, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices) == " ".join(expected)


async def test_media_of_megabytes_of_many_at_once_are_not_mixed_up(server: ServerProcess) -> None:
    """Fault: one gets to see another's, or what is large is cut on its way through four processes."""
    files = [bytes([index]) * (2**20 * (index + 1)) for index in range(5)]
    found = await answers(server, *(asked(data_url("video", data)) for data in files))
    assert [text_of(response) for response in found] == [description("video", data) for data in files]


async def test_an_option_that_the_processor_does_not_know_is_refused(server: ServerProcess) -> None:
    """Fault: it is accepted and has no effect."""
    said = asked(data_url("video", b"v"), mm_processor_kwargs={"use_audio_in_vido": True})
    [response] = await answers(server, said)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "mm_processor_kwargs.use_audio_in_vido"
    assert "did you mean 'mm_processor_kwargs.use_audio_in_video'" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("order", "status", "code", "said"),
    [
        (b"bad", 400, "invalid_request", "messages[0].content[0].image_url.url: is no image"),
        (b"exit", 500, "stage_failed", "2 times, while it prepared this request"),
        (b"hang", 500, "stage_failed", "not prepared within 2 s (step_timeout_s)"),
        (b"fill", 413, "payload_too_large", "268435456 bytes (processor_memory_nbytes)"),
    ],
)
async def test_a_file_that_does_harm_fails_alone(
    server: ServerProcess, order: bytes, status: int, code: str, said: str
) -> None:
    """Fault: a stranger's file takes down whoever is prepared beside or after it, or /health."""
    neighbours = [asked(data_url("audio", b"%d" % index + order)) for index in range(4)]
    harm, *rest = await answers(server, asked(data_url("image", order)), *neighbours)
    assert harm.status_code == status, harm.text
    assert harm.json()["error"]["code"] == code and said in harm.json()["error"]["message"]
    wanted = [description("audio", b"%d" % index + order) for index in range(4)]
    assert [text_of(response) for response in rest] == wanted
    assert server.health()[0] == 200
    assert text_of((await answers(server, asked(data_url("image", b"after" + order))))[0])


def test_media_lie_in_no_record_and_no_log(server: ServerProcess, folder: Path) -> None:
    """Fault: a record of events grows by every video, or a log repeats it."""
    encoded = base64.b64encode(b"pixels" + MARK)
    record = (folder / "events").read_bytes()
    assert b"34 bytes" in base64.b64decode(record.split(b'"image","data":"')[1].split(b'"')[0])
    for text in (record, server.words.encode(), server.ask("/debug/state")[1]):
        assert MARK not in text and encoded not in text
    assert len(record) < 2**20


async def test_a_server_fetches_from_the_hosts_that_were_named(tmp_path: Path) -> None:
    """Fault: the flag reaches the server and not what fetches; a fetch outlives its client."""
    async with media_host() as host:
        server = ServerProcess(
            tmp_path,
            *("--allowed-media-domains", f"127.0.0.1:{host.port}"),
            model="media",
            prefix=(sys.executable, "-m", "tests.media.served"),
        )
        try:
            await asyncio.to_thread(server.wait_ready)
            show = {"type": "image_url", "image_url": {"url": host.url("/picture")}}
            host.leads_to = "http://169.254.169.254/latest"
            away = {"type": "image_url", "image_url": {"url": host.url("/lead")}}
            inside = {"type": "image_url", "image_url": {"url": host.url("/picture", "localhost")}}
            right, *wrong = await answers(server, asked(show), asked(away), asked(inside))
            assert text_of(right) == description("image", b"picture")
            assert [response.status_code for response in wrong] == [400, 400]
            assert {response.json()["error"]["param"] for response in wrong} == {"messages[0].content[0].image_url.url"}
            host.was_asked.clear()
            slow = {"type": "image_url", "image_url": {"url": host.url("/drip")}}
            leaving = asyncio.create_task(answers(server, asked(slow)))
            await host.was_asked.wait()
            leaving.cancel()
            await asyncio.wait([leaving])
            assert await host.is_left()
        finally:
            server.process.terminate()
            await asyncio.to_thread(server.process.wait, 30)


@pytest.mark.parametrize("inline", [False, True])
def test_from_python(inline: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fault: a path, an array or a list of frames is read as something else; one bad prompt fails the others."""
    monkeypatch.setitem(REGISTRY, "media", "tests.media.family:PIPELINE")
    (tmp_path / "a.wav").write_bytes(SOUND)
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    samples = np.array([0.25, -0.5], np.float32)
    prompts = [
        [
            {
                "role": "user",
                "content": [{"type": "image", "image": pixels}, {"type": "audio", "audio": str(tmp_path / "a.wav")}],
            }
        ],
        {"prompt": "see", "multi_modal_data": {"audio": (samples, 16000), "video": [pixels, pixels]}},
        {"prompt": "see", "multi_modal_data": {"image": str(tmp_path / "none.png")}},
        {"prompt": "see", "multi_modal_data": {"image": b"bad"}},
        "words alone",
    ]
    with Omni("media", inline=inline) as omni:
        read, raw, missing, bad, words = omni.generate(prompts, use_tqdm=False)
    assert read.text == f"{description('image', pixels.tobytes())}-2x4x3@None {description('audio', SOUND)}"
    frames = description("video", pixels.tobytes() * 2)
    assert raw.text == f"see {description('audio', samples.tobytes())}-2@16000.0 {frames}-2x2x4x3@None"
    for failed, field in ((missing, "multi_modal_data.image"), (bad, "multi_modal_data.image")):
        assert failed.error is not None
        assert (failed.error.code, failed.error.field) == ("invalid_request", field)
    assert words.text == "words alone"


def test_on_the_command_line(tmp_path: Path) -> None:
    """Fault: a flag that is taken and shows nothing."""
    (tmp_path / "a.png").write_bytes(b"pixels")
    (tmp_path / "b.wav").write_bytes(SOUND)
    command = [sys.executable, "-m", "tests.media.served", sys.executable, "-m", "omnistage", "generate", "media"]
    command += ["--prompt", "and?", "--image", str(tmp_path / "a.png"), "--audio", str(tmp_path / "b.wav")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == f"{description('image', b'pixels')} {description('audio', SOUND)} and?\n", done.stderr
