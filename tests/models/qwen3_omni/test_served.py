"""The pipeline behind a real server, asked by the official client: what comes out, and what harms only whom it must."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile
from PIL import Image

from omnistage import Omni
from tests.faults.server import ServerProcess, eventually
from tests.models.qwen3_omni.cases import AUDIO, AUDIO_RATE_HZ, IMAGE, film
from tests.models.qwen3_omni.test_parity import GREEDY
from tests.states import differences
from tests.tiny.qwen3_omni import SHAPES, OmniShape

TEXT_TOKENS, FRAMES = 10, 30
LONG = 600  # frames: seconds of work for the talker
BUDGET = 8  # tokens of a step of the thinker; a picture of PICTURE has twice as many
PICTURE = (128, 128)
TALKER_MODEL_LEN = 1500
TALKER_INPUT_NBYTES = 200_000  # of 64 float32 a row: 48 pictures
FLAGS = {
    "stage-0-max-num-seqs": BUDGET,
    "stage-0-max-num-batched-tokens": BUDGET,
    "stage-0-max-model-len": 4096,
    "stage-1-max-model-len": TALKER_MODEL_LEN,
    "stage-1-max-input-nbytes": TALKER_INPUT_NBYTES,
}
HELLO = "Hello there"
HEADER_NBYTES = 44
SOON_S = 30.0


def samples_of(frames: int) -> int:
    """1920 of each frame, but for the ends that four convolutions cut off."""
    return max(0, 1920 * frames - 555)


@pytest.fixture(scope="module")
def folder(omni: Callable[[OmniShape], Path]) -> Path:
    return omni(SHAPES[1])


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = [word for name, value in FLAGS.items() for word in (f"--{name}", str(value))]
    prefix = (sys.executable, "-m", "tests.models.qwen3_omni.served")
    running = ServerProcess(tmp_path_factory.mktemp("server"), *flags, model=str(folder), prefix=prefix)
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()
        left = running.pids
        assert eventually(lambda: not left(), 10) or not running.sweep(), "processes outlive the server"


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, timeout=60) as one:
        yield one


@pytest.fixture
def settled(server: ServerProcess, client: openai.OpenAI) -> Iterator[None]:
    """After the test the server's tables hold what they held before."""

    def held() -> dict[str, Any]:
        return without_processes(server.debug_state())

    told(client, HELLO)
    before = held()
    yield
    assert eventually(lambda: not differences(before, held()), SOON_S), differences(before, held())


def without_processes(state: dict[str, Any]) -> dict[str, Any]:
    """Threads, open files and memory are the campaign of faults' to judge, after longer runs."""
    return {
        name: without_processes(value) if isinstance(value, dict) else value
        for name, value in state.items()
        if name != "process"
    }


# ---- what is asked, and what comes ------------------------------------------------------------------------------------


def asked(content: Any, *, modalities: tuple[str, ...] = ("text", "audio"), **more: Any) -> dict[str, Any]:
    """Arguments of a greedy request of TEXT_TOKENS and FRAMES. `text` changes the thinker's parameters, `frames` and
    `voice` those of the others."""
    thinker = {"temperature": 0.0, "max_tokens": TEXT_TOKENS, "ignore_eos": True, **more.pop("text", {})}
    talker = {"temperature": 0.0, "ignore_eos": True, "max_tokens": more.pop("frames", FRAMES)}
    voice = {"voice": more.pop("voice", "ethan")}
    heard = {"audio": {"voice": voice["voice"], "format": "wav"}} if "audio" in modalities else {}
    return {
        "model": "",
        "messages": [{"role": "user", "content": content}],
        "modalities": list(modalities),
        "extra_body": {"sampling_params_list": [thinker, talker, voice], "model": None},  # there is but one
        **heard,
        **more,
    }


@dataclass
class Told:
    """One answer; `audio` is a file, or empty."""

    content: str | None
    transcript: str
    audio: bytes
    finish_reason: str | None

    @property
    def samples(self) -> np.ndarray[Any, Any]:
        assert self.audio[:4] == b"RIFF" and self.audio.count(b"RIFF") == 1
        return np.frombuffer(self.audio[HEADER_NBYTES:], "<i2").astype(int)


def told(client: openai.OpenAI, content: Any, **more: Any) -> Told:
    """The whole answer."""
    choice = client.chat.completions.create(**asked(content, **more)).choices[0]
    sound = choice.message.audio
    data = b"" if sound is None else base64.b64decode(sound.data)
    return Told(choice.message.content, "" if sound is None else sound.transcript, data, choice.finish_reason)


def streamed(client: openai.OpenAI, content: Any, **more: Any) -> Told:
    """The joined pieces of a streamed one."""
    found = Told(None, "", b"", None)
    for chunk in client.chat.completions.create(**asked(content, **more), stream=True):
        for choice in chunk.choices:
            delta = choice.delta.model_dump()
            sound = delta.get("audio") or {}
            if delta["content"] is not None:
                found.content = (found.content or "") + delta["content"]
            found.transcript += sound.get("transcript") or ""
            found.audio += base64.b64decode(sound.get("data") or "")
            assert found.finish_reason is None, "something comes after the end"
            found.finish_reason = choice.finish_reason
    return found


def expect_equal(one: Told, another: Told) -> None:
    assert (one.content, one.transcript, one.finish_reason) == (
        another.content,
        another.transcript,
        another.finish_reason,
    )
    assert one.samples.shape == another.samples.shape
    assert int(np.abs(one.samples - another.samples).max(initial=0)) <= 1


def refusal(client: openai.OpenAI, content: Any, **more: Any) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as caught:
        told(client, content, **more)
    return caught.value


def data_url(kind: str, data: bytes) -> dict[str, Any]:
    return {"type": f"{kind}_url", f"{kind}_url": {"url": f"data:{kind}/x;base64,{base64.b64encode(data).decode()}"}}


def picture(turned: int = 0) -> dict[str, Any]:
    file = io.BytesIO()
    IMAGE.rotate(turned).resize(PICTURE, Image.Resampling.NEAREST).save(file, "PNG")
    return data_url("image", file.getvalue())


def sound(data: bytes | None = None) -> dict[str, Any]:
    file = io.BytesIO()
    soundfile.write(file, AUDIO, AUDIO_RATE_HZ, format="WAV")
    encoded = base64.b64encode(file.getvalue() if data is None else data).decode()
    return {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def runs_of(server: ServerProcess, outcome: str = "") -> dict[str, float]:
    """Runs of every stage that ended, in whatever way, or in that one."""
    found = {"thinker": 0.0, "talker": 0.0, "code2wav": 0.0}
    for name, value in server.counters().items():
        if name.startswith("omnistage_stage_requests_total") and f"outcome={outcome}" in name:
            found[name.partition("stage=")[2].rstrip("}")] += value
    return found


# ---- what comes out ---------------------------------------------------------------------------------------------------


def test_text_and_sound_are_streamed_together(client: openai.OpenAI) -> None:
    """Fault: pieces that are lost, repeated or out of step; a second header; a file of another length than its frames."""
    whole, pieces = told(client, HELLO), streamed(client, HELLO)
    expect_equal(pieces, whole)
    assert whole.content and whole.content == whole.transcript
    assert len(whole.samples) == samples_of(FRAMES) and whole.samples.std() > 1000
    assert whole.finish_reason == "length"


def test_text_alone_starts_no_speaker(client: openai.OpenAI, server: ServerProcess) -> None:
    """Fault: speech that nobody hears is made all the same."""
    before = runs_of(server)
    answer = told(client, HELLO, modalities=("text",))
    assert answer.content == told(client, HELLO).content and not answer.audio
    after = runs_of(server)
    assert [after[stage] - before[stage] for stage in ("thinker", "talker", "code2wav")] == [2, 1, 1]


@pytest.mark.parametrize("ask", [told, streamed])
def test_sound_alone_has_a_transcript(client: openai.OpenAI, ask: Any) -> None:
    """Fault: content that nobody asked for, or a transcript that goes with it."""
    answer, both = ask(client, HELLO, modalities=("audio",)), ask(client, HELLO)
    assert answer.content is None
    assert answer.transcript == both.transcript
    assert int(np.abs(answer.samples - both.samples).max()) <= 1


def test_media_of_every_kind_beside_each_other(client: openai.OpenAI) -> None:
    """Fault: one gets what another sees; a medium that changes nothing."""
    contents = [
        [picture(), text("What?")],
        [sound(), text("What?")],
        [data_url("video", film()), text("What?")],
        [text("First"), picture(), text("then"), sound(), data_url("video", film()), text("What?")],
        "What?",
    ]
    alone = [told(client, content) for content in contents]
    with ThreadPoolExecutor(len(contents)) as pool:
        for one, together in zip(alone, pool.map(lambda content: streamed(client, content), contents), strict=True):
            expect_equal(together, one)
    assert len({answer.content for answer in alone}) == len(contents)


def test_voices(client: openai.OpenAI) -> None:
    """Fault: a name that is taken and changes nothing, or is not known and taken."""
    mine, theirs = told(client, HELLO, voice="ethan"), told(client, HELLO, voice="alloy")
    expect_equal(mine, theirs)
    assert int(np.abs(told(client, HELLO, voice="aiden").samples - mine.samples).max()) > 100
    refused = refusal(client, HELLO, voice="bob")
    assert (refused.status_code, refused.body["param"]) == (400, "audio.voice")  # type: ignore[index]


def test_speech_needs_a_user_turn(client: openai.OpenAI) -> None:
    """Fault: a crash in the talker, which has nothing to answer."""
    messages = [{"role": "system", "content": "You are a helpful assistant."}]
    assert refusal(client, HELLO, messages=messages).status_code == 400
    assert told(client, HELLO, messages=messages, modalities=("text",)).content


@pytest.mark.parametrize(
    ("part", "field"),
    [
        (data_url("image", b"no picture"), "image_url.url"),
        (data_url("image", base64.b64decode(picture()["image_url"]["url"].partition(",")[2])[:900]), "image_url.url"),
        (sound(b"nothing at all"), "input_audio.data"),
        (data_url("video", b"nothing at all"), "video_url.url"),
        (data_url("video", film()[:3000]), "video_url.url"),
    ],
)
def test_broken_media_are_refused_by_name(client: openai.OpenAI, part: dict[str, Any], field: str) -> None:
    """Fault: a 500, a message that leaves open which of the media it is, or one that shows our own objects."""
    refused = refusal(client, [picture(), text("and"), part])
    assert refused.status_code == 400
    assert refused.body["param"] == f"messages[0].content[2].{field}"  # type: ignore[index]
    assert " object at " not in refused.message and "omnistage" not in refused.message


# ---- lengths ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def token_ids(folder: Path) -> list[int]:
    """Of the greedy answer, up to the first that comes again."""
    with Omni(str(folder), inline=True) as omni:
        answer = omni.generate([[{"role": "user", "content": HELLO}]], GREEDY, use_tqdm=False)[0]
    ids = list(answer.token_ids)
    again = next((at for at, token in enumerate(ids) if token in ids[:at]), len(ids))
    assert again >= 3, ids
    return ids[:again]


@pytest.mark.parametrize("ask", [told, streamed])
def test_an_empty_answer_is_a_silent_file(client: openai.OpenAI, ask: Any, token_ids: list[int]) -> None:
    """Fault: a talker without a prompt that waits for one; a file that is none."""
    answer = ask(client, HELLO, text={"stop_token_ids": token_ids[:1]})
    assert (answer.content, answer.transcript, answer.finish_reason) == ("", "", "stop")
    assert len(answer.samples) == 0


def test_an_answer_of_one_token_is_spoken(client: openai.OpenAI) -> None:
    """Fault: the first token belongs to the talker's prompt, so nothing is left to say."""
    whole, pieces = told(client, HELLO, text={"max_tokens": 1}), streamed(client, HELLO, text={"max_tokens": 1})
    expect_equal(whole, pieces)
    assert len(whole.samples) == samples_of(FRAMES) and whole.finish_reason == "length"


def test_all_of_a_text_that_was_cut_is_spoken(client: openai.OpenAI, token_ids: list[int]) -> None:
    """Fault: the last token of a cut text is lost. The same text is spoken alike whether it was cut or ended by a token, which
    is not spoken."""
    cut = told(client, HELLO, text={"max_tokens": 2})
    ended = told(client, HELLO, text={"stop_token_ids": token_ids[2:3]})
    assert (cut.finish_reason, ended.finish_reason) == ("length", "length")
    expect_equal(ended, cut)
    longer = told(client, HELLO, text={"max_tokens": 3})
    assert int(np.abs(longer.samples - cut.samples).max()) > 100


@pytest.mark.parametrize("ask", [told, streamed])
def test_speech_that_is_cut_says_so(client: openai.OpenAI, ask: Any, token_ids: list[int]) -> None:
    """Fault: half of an answer is heard, and all seems well."""
    whole = {"stop_token_ids": token_ids[2:3]}
    answer = ask(client, HELLO, text=whole, frames=5)
    assert answer.finish_reason == "length" and len(answer.samples) == samples_of(5)
    assert told(client, HELLO, text=whole, modalities=("text",)).finish_reason == "stop"


@pytest.mark.usefixtures("settled")
def test_forty_pictures_each_larger_than_a_step(client: openai.OpenAI, server: ServerProcess) -> None:
    """Fault: a picture that never fits into a step's budget; rows that go astray where so many are handed over. More of them than
    the talker may hold are refused, by the name of the edge."""
    forty = [picture(turned) for turned in range(40)]
    expect_equal(streamed(client, [*forty, text("?")], frames=5), told(client, [*forty, text("?")], frames=5))
    refused = refusal(client, [*forty, *forty[:20], text("?")])
    assert refused.status_code == 413
    assert "talker" in refused.message and f"{TALKER_INPUT_NBYTES} (max_input_nbytes)" in refused.message
    assert server.health()[0] == 200


@pytest.mark.usefixtures("settled")
def test_a_prompt_that_is_too_long_for_the_talker_alone(client: openai.OpenAI) -> None:
    """Fault: it waits for ever, or an error that speaks of a limit that the caller's prompt does not exceed."""
    long = "~" * (TALKER_MODEL_LEN + 100)
    wanted = rf"messages: 1[56]\d\d tokens leave .* \(max_model_len {TALKER_MODEL_LEN}\) in stage talker"
    with pytest.raises(openai.BadRequestError, match=wanted):
        told(client, long)
    with pytest.raises(openai.APIError, match=wanted):
        streamed(client, long)
    assert told(client, long, modalities=("text",)).content
    cut = told(client, long[: TALKER_MODEL_LEN - 100], frames=TALKER_MODEL_LEN)
    assert cut.finish_reason == "length" and 0 < len(cut.samples) < samples_of(100)


# ---- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("ask", [told, streamed])
def test_a_sound_that_cannot_be_made_fails_alone(client: openai.OpenAI, server: ServerProcess, ask: Any) -> None:
    """Fault: whoever is decoded in one batch with it fails too, or hears its sound."""
    contents = [HELLO, "What is in the picture?", [sound(), text("What?")], "!spoil"]
    alone = [told(client, content) for content in contents[:3]]
    before = runs_of(server)
    with ThreadPoolExecutor(len(contents)) as pool:
        *others, spoilt = [pool.submit(ask, client, content) for content in contents]
        for one, other in zip(alone, others, strict=True):
            expect_equal(other.result(), one)
        with pytest.raises(openai.APIError, match=r"ArithmeticError: this sound cannot be made \(stage code2wav\)"):
            spoilt.result()
    assert runs_of(server)["code2wav"] - before["code2wav"] == len(contents)


def leave(server: ServerProcess, content: Any, is_time: Any, **more: Any) -> None:
    """Sends a streamed request, reads until `is_time(event)` and closes the connection. What comes first is None: the request."""
    body = asked(content, stream=True, frames=LONG, **more)
    body |= body.pop("extra_body")
    with (
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        assert any(is_time(line) for line in answer.iter_lines()), "the answer ended before it was left"


@pytest.mark.usefixtures("settled")
def test_clients_that_leave(server: ServerProcess, client: openai.OpenAI) -> None:
    """Fault: some stage goes on working for nobody. They leave before the first token, with the first, with the first sound, and
    while the decoder works alone; then others are served as ever."""
    before, whole = runs_of(server), told(client, HELLO)
    hurried = client.with_options(timeout=0.2)
    with pytest.raises(openai.APITimeoutError):
        told(hurried, "~" * 1300, frames=LONG)
    leave(server, HELLO, lambda line: '"content":"' in line, text={"max_tokens": 500})
    leave(server, HELLO, lambda line: '"data":"' in line)
    with pytest.raises(httpx.ReadTimeout):
        stalled(server)
    expect_equal(told(client, HELLO), whole)
    assert eventually(lambda: (runs_of(server)["code2wav"] - before["code2wav"]) >= 4, SOON_S)


def stalled(server: ServerProcess) -> None:
    """A request whose decoder hangs until it is told to leave off: the client is the first to lose patience."""
    body = asked("!stall", stream=True)
    body |= body.pop("extra_body")
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=0.7) as client:
        client.post("/v1/chat/completions", json=body)


def test_a_talker_that_is_killed_in_mid_speech(client: openai.OpenAI, server: ServerProcess) -> None:
    """Fault: a stream that hangs, or goes on with sound of another beginning; a whole request that fails although nobody has heard
    of it; a stage that stays away."""
    expected = told(client, HELLO, frames=LONG)
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(told, client, HELLO, frames=LONG)
        errors, heard = [], 0
        try:
            for chunk in client.chat.completions.create(**asked(HELLO, frames=LONG), stream=True):
                if '"data"' in chunk.model_dump_json(exclude_none=True):
                    heard += 1
                if heard == 1:
                    heard += 1
                    assert server.kill_worker("talker") is not None
        except openai.APIError as error:
            errors.append(error)
        assert [error.code for error in errors] == ["stage_failed"], errors
        expect_equal(whole.result(), expected)
    assert runs_of(server, "lost")["talker"] == 2
    assert eventually(lambda: server.health()[0] == 200, SOON_S)
    expect_equal(streamed(client, HELLO, frames=LONG), expected)


def test_one_bad_prompt_among_good_ones(folder: Path) -> None:
    """Fault: offline, one prompt that cannot be prepared takes the others along."""
    contents = [HELLO, [{"type": "image", "image": b"no picture"}], "What?"]
    prompts = [[{"role": "user", "content": content}] for content in contents]
    with Omni(str(folder), inline=True) as omni:
        good = [omni.generate([prompt], GREEDY, use_tqdm=False)[0] for prompt in (prompts[0], prompts[2])]
        first, bad, last = omni.generate(prompts, GREEDY, use_tqdm=False)
    assert bad.error is not None and bad.error.code == "invalid_request"
    for one, another in zip((first, last), good, strict=True):
        assert one.error is None and one.token_ids == another.token_ids
        assert one.multimodal_output.numpy("audio").shape == another.multimodal_output.numpy("audio").shape
