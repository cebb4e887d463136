"""POST /v1/chat/completions in the process: whole and streamed answers, and every way to ask for something wrong."""

import base64
import io
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import soundfile

from omnistage.core.errors import ErrorInfo
from omnistage.core.params import SamplingParams
from omnistage.serve.app import create_app
from omnistage.serve.routes import chat
from tests.engine.models import SPOKEN, WRITTEN
from tests.fakes_runtime import FakeRuntime
from tests.serve.live import CHAT, client_of, serving_of

PATH = "/v1/chat/completions"


async def ask(body: dict[str, Any], runtime: FakeRuntime | None = None, **serving: Any) -> tuple[int, Any]:
    """Status and decoded body of one request."""
    async with client_of(serving_of(runtime or FakeRuntime(), **serving)) as client:
        response = await client.post(PATH, content=json.dumps(body))  # httpx's own encoder refuses lone surrogates
    return response.status_code, response.json()


async def stream(body: dict[str, Any], runtime: FakeRuntime | None = None) -> list[dict[str, Any]]:
    """The chunks of a streamed answer; the last line must be [DONE] unless the stream broke off."""
    async with client_of(serving_of(runtime or FakeRuntime())) as client:
        response = await client.post(PATH, json={**body, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    if events[-1] == "[DONE]":
        events.pop()
    return [json.loads(event) for event in events]


def refused(status: int, body: Any, field: str | None) -> str:
    """The message of a refusal that names `field`."""
    assert status == 400, body
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["param"] == field
    assert body["error"]["type"] == "invalid_request_error"
    return str(body["error"]["message"])


async def test_text_is_answered_with_text_alone() -> None:
    """Fault: speech is made, or an audio object sent, for a chat that did not ask for it."""
    runtime = FakeRuntime()
    status, body = await ask({"model": "talker", "messages": CHAT}, runtime)
    assert status == 200
    assert runtime.submitted[0].wants == ("text",)
    [choice] = body["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "Hello world.", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert body["usage"]["total_tokens"] == 5
    assert (body["object"], body["model"]) == ("chat.completion", "talker")


@pytest.mark.parametrize("form", [None, "wav", "mp3", "flac", "opus", "pcm16", "pcm"])
async def test_speech_comes_in_the_format_that_was_asked_for(form: str | None) -> None:
    """Fault: bytes do not match the declared format, rate or length."""
    audio = {"voice": "alloy"} | ({"format": form} if form else {})
    status, body = await ask(
        {"messages": CHAT, "modalities": ["text", "audio"], "audio": audio}, FakeRuntime(samples=4800)
    )
    assert status == 200
    sound = body["choices"][0]["message"]["audio"]
    data = base64.b64decode(sound["data"])
    assert sound["transcript"] == body["choices"][0]["message"]["content"] == "Hello world."
    assert sound["id"].startswith("audio_")
    assert sound["expires_at"] == body["created"] + 3600
    if form in ("pcm16", "pcm"):
        assert len(data) == 2 * 9600
        return
    samples, rate = soundfile.read(io.BytesIO(data))
    assert soundfile.info(io.BytesIO(data)).format == {None: "WAV", "opus": "OGG"}.get(form, str(form).upper())
    assert (rate, abs(len(samples) - 9600) <= 1500) == (24000, True)
    assert float(np.abs(samples).max()) > 0.4  # Opus lets no constant through


async def test_audio_alone_has_a_transcript_but_no_content() -> None:
    """Fault: an answer that was asked for as sound alone has content, or its transcript is empty."""
    _, body = await ask({"messages": CHAT, "modalities": ["audio"]})
    message = body["choices"][0]["message"]
    assert message["content"] is None
    assert message["audio"]["transcript"] == "Hello world."


async def test_a_stream_has_the_role_first_and_the_usage_once_and_last() -> None:
    """Fault: the order of chunks breaks official clients."""
    chunks = await stream({"messages": CHAT, "stream_options": {"include_usage": True}})
    *pieces, finish, last = chunks
    deltas = [piece["choices"][0]["delta"] for piece in pieces]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta["content"] for delta in deltas) == "Hello world."
    assert (finish["choices"][0]["delta"], finish["choices"][0]["finish_reason"]) == ({}, "stop")
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 5)
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_a_stream_without_usage_has_none() -> None:
    """Fault: usage chunks, which have no choices, reach clients that did not ask for them."""
    chunks = await stream({"messages": CHAT})
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("short_samples", [240, 239])
@pytest.mark.parametrize("form", [None, "wav"])
async def test_streamed_speech_joined_is_the_whole_speech(
    form: str | None, short_samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: samples lost between pieces, or a WAV header in front of each of them, be they encoded in a thread or at once."""
    monkeypatch.setattr(chat, "SHORT_SAMPLES", short_samples)
    body = {
        "messages": CHAT,
        "modalities": ["text", "audio"],
        "audio": {"voice": "echo"} | ({"format": form} if form else {}),
    }
    chunks = await stream(body)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    sound = b"".join(base64.b64decode(delta["audio"]["data"]) for delta in deltas if "data" in delta.get("audio", {}))
    assert "".join(delta["audio"].get("transcript", "") for delta in deltas if "audio" in delta) == "Hello world."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Hello world."
    assert sound.count(b"RIFF") == (1 if form == "wav" else 0)
    assert len(sound) == 2 * 480 + (44 if form == "wav" else 0)
    assert list(deltas[-2]["audio"]) == ["expires_at"]
    assert deltas[-1] == {}
    if form == "wav":
        samples, rate = soundfile.read(io.BytesIO(sound))
        assert (len(samples), rate) == (480, 24000)


async def test_parameters_reach_the_stage_that_knows_them() -> None:
    """Fault: a field that is accepted and ignored."""
    runtime = FakeRuntime()
    body = {
        "messages": CHAT, "modalities": ["text", "audio"], "audio": {"voice": {"id": "am_michael"}},
        "temperature": 0, "top_p": 0.5, "top_k": 4, "min_p": 0.1, "repetition_penalty": 1.5, "presence_penalty": 0.5,
        "frequency_penalty": -0.5, "logit_bias": {"7": -100}, "stop": "END", "stop_token_ids": [9], "min_tokens": 1,
        "max_completion_tokens": 8, "ignore_eos": True, "skip_special_tokens": False, "include_stop_str_in_output": True,
        "seed": 0, "logprobs": True, "top_logprobs": 3, "priority": -1, "n": 1,
        "sampling_params_list": [None, {"speed": 2.0}],
        "user": "u", "store": False, "metadata": {"a": "b"}, "service_tier": "auto", "safety_identifier": "s",
        "prompt_cache_key": "k", "tools": [], "tool_choice": "auto", "response_format": {"type": "text"},
    }  # fmt: skip
    status, answer = await ask(body, runtime)
    assert status == 200, answer
    [request] = runtime.submitted
    assert request.stage_params[0] == SamplingParams(
        temperature=0.0, top_p=0.5, top_k=4, min_p=0.1, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=-0.5,
        logit_bias={7: -100.0}, stop=("END",), stop_token_ids=(2, 9), min_tokens=1, max_tokens=8, ignore_eos=True,
        skip_special_tokens=False, include_stop_str_in_output=True, seed=0, logprobs=3,
    )  # fmt: skip
    speech: Any = request.stage_params[1]
    assert (speech.voice, speech.speed, speech.seed, request.priority) == ("am_michael", 2.0, 0, -1)


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"messages": None}, "messages", "a list of messages"),
        ({"messages": []}, "messages", "not empty"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content", "a string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "messages[0].content[0].type",
            "reads text only",
        ),
        ({"modalities": []}, "modalities", "text, audio"),
        ({"modalities": ["smell"]}, "modalities", "text, audio"),
        ({"modalities": "text"}, "modalities", "text, audio"),
        ({"audio": {"voice": "alloy"}}, "audio", 'modalities has "audio"'),
        ({"modalities": ["audio"], "audio": {"voice": "bob"}}, "audio.voice", "af_heart, am_michael, alloy, echo"),
        ({"modalities": ["audio"], "audio": {"voice": {"name": "x"}}}, "audio.voice", "af_heart"),
        ({"modalities": ["audio"], "audio": {"format": "aac"}}, "audio.format", "wav, mp3, flac, opus, pcm16"),
        ({"modalities": ["audio"], "audio": {"format": "mp3"}, "stream": True}, "audio.format", "streamed"),
        ({"modalities": ["audio"], "audio": {"format": {}}}, "audio.format", "wav"),
        ({"modalities": ["audio"], "audio": {"formt": "wav"}}, "audio.formt", "did you mean 'format'"),
        ({"audio": 3}, "audio", "dictionary"),
        ({"modalities": 3, "audio": {}}, "modalities", "text, audio"),
        ({"modalities": "audio", "audio": {}}, "modalities", "text, audio"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages", "Unicode text"),
        ({"messages": [{"role": "user", "content": "a", "\ud800": 1}]}, "messages", "Unicode text"),
        ({"stop": "\ud800"}, "stop", "Unicode text"),
        ({"\ud800": 1}, "\\ud800", "Unicode text"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "token ids"),
        ({"modalities": ["audio"], "n": 2}, "n", "1 where more than text"),
        ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"temperature": "hot"}, "temperature", "a number"),
        ({"temperature": -0.1}, "temperature", "[0.0, 100.0]"),
        ({"top_p": 0}, "top_p", "(0.0, 1.0]"),
        ({"top_k": 1.5}, "top_k", "an integer"),
        ({"n": 0}, "n", "[1, 128]"),
        ({"max_tokens": 0}, "max_tokens", "[1, "),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "[1, "),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "the same as max_completion_tokens"),
        ({"logprobs": 1}, "logprobs", "boolean"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs is true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "[0, 20]"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": [1]}, "logit_bias", "token ids"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "[-100.0, 100.0]"),
        ({"logit_bias": {"4294967296": 1}}, "logit_bias", "[0, "),
        ({"stop": ""}, "stop", "1 to 1024"),
        ({"stop": 3}, "stop", "texts"),
        ({"seed": 1.5}, "seed", "an integer or null"),
        ({"seed": -1}, "seed", "[0, "),
        ({"priority": "high"}, "priority", "an integer"),
        ({"sampling_params_list": [{}, {}, {}]}, "sampling_params_list", "at most 2"),
        ({"sampling_params_list": [{"max_tokens": 0}]}, "sampling_params_list[0].max_tokens", "[1, "),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream is true"),
        ({"stream": True, "stream_options": {"include_usge": True}}, "stream_options.include_usge", "include_usage"),
        ({"tools": [{"type": "function"}]}, "tools", "does not serve"),
        ({"tool_choice": "required"}, "tool_choice", "'none' or 'auto'"),
        ({"response_format": {"type": "json_object"}}, "response_format", "{'type': 'text'}"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "null or 'none'"),
        ({"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs", "it reads text only"),
        ({"model": 3}, "model", "string"),
    ],
)
async def test_what_is_wrong_is_refused_by_field(change: dict[str, Any], field: str, said: str) -> None:
    """Fault: a field out of range, of the wrong type or unknown is ignored, or answered with 500 or without its name."""
    runtime = FakeRuntime()
    status, body = await ask({"messages": CHAT, **change}, runtime)
    assert said in refused(status, body, field)
    assert runtime.submitted == []


async def test_a_body_that_is_no_request() -> None:
    """Fault: 500 for malformed JSON, for another kind of value, for a missing field, for a body without end."""
    async with client_of(serving_of(FakeRuntime())) as client:
        for content, said in (("{", "valid JSON"), ("[]", "JSON object"), ("\xff", "valid JSON"), ("[" * 9000, "JSON")):
            response = await client.post(PATH, content=content.encode("latin-1"))
            assert said in refused(response.status_code, response.json(), None)
        response = await client.post(PATH, json={"model": "talker"})
        assert "missing" in refused(response.status_code, response.json(), "messages")
        response = await client.post(PATH, content=b"x" * 20_001)
        assert (response.status_code, response.json()["error"]["code"]) == (413, "payload_too_large")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_bears_the_id_of_its_request(stream: bool) -> None:
    """Fault: an answer whose request cannot be found in the log or in a record of events."""
    runtime = FakeRuntime()
    async with client_of(serving_of(runtime)) as client:
        answer = await client.post(PATH, json={"messages": CHAT, "stream": stream})
    told = set(re.findall(r'"id":"chatcmpl-(\w*)"', answer.text))
    assert told == {runtime.submitted[0].request_id}


async def test_another_model_is_not_found() -> None:
    """Fault: a request for one model is answered by another."""
    status, body = await ask({"model": "gpt-4o", "messages": CHAT})
    assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")
    assert "accepted: talker" in body["error"]["message"]


async def test_a_model_that_another_endpoint_serves_says_which() -> None:
    """Fault: a restriction that nobody reads, so that a model is asked for what it cannot do."""
    runtime, elsewhere = FakeRuntime(), replace(SPOKEN, endpoints=("/v1/audio/speech",))
    status, body = await ask({"messages": CHAT}, runtime, model=elsewhere)
    assert (status, body["error"]["code"], runtime.submitted) == (501, "unsupported", [])
    assert "'talker'" in body["error"]["message"] and "/v1/audio/speech" in body["error"]["message"]
    status, _ = await ask({"messages": CHAT}, model=replace(SPOKEN, endpoints=("/v1/audio/speech", PATH)))
    assert status == 200


async def test_a_model_that_only_writes_says_so() -> None:
    """Fault: speech is asked of a model without a voice, and the reason is not told."""
    status, body = await ask({"messages": CHAT, "modalities": ["text", "audio"]}, model=WRITTEN)
    assert "one or more of text" in refused(status, body, "modalities")
    assert SPOKEN.modalities != WRITTEN.modalities


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (ErrorInfo("queue_full", "too many", retry_after_s=2.2), 429, "3"),
        (ErrorInfo("stage_unavailable", "speaker is down", "speaker"), 503, "1"),
        (ErrorInfo("stage_failed", "broke", "speaker"), 500, None),
        (ErrorInfo("timed_out", "too long"), 504, None),
        (ErrorInfo("payload_too_large", "too large"), 413, None),
        (ErrorInfo("invalid_request", "prompt: too long", field="prompt"), 400, None),
        (ErrorInfo("unsupported", "cannot"), 501, None),
        (ErrorInfo("internal", "ValueError: x"), 500, None),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_failure_before_the_first_piece_has_a_status(
    error: ErrorInfo, status: int, retry: str | None, streamed: bool
) -> None:
    """Fault: 200 and an error inside, or a refusal without a time to come back."""
    runtime = FakeRuntime(words=())
    runtime.error = error
    async with client_of(serving_of(runtime)) as client:
        response = await client.post(PATH, json={"messages": CHAT, "stream": streamed})
    assert (response.status_code, response.headers.get("retry-after")) == (status, retry)
    assert response.json()["error"]["code"] == error.code
    assert error.stage is None or error.stage in response.json()["error"]["message"]


async def test_a_failure_in_mid_stream_is_one_event_and_the_end() -> None:
    """Fault: a stream that breaks looks as if it were complete, or hangs."""
    runtime = FakeRuntime()
    runtime.error = ErrorInfo("stage_failed", "the voice broke", "speaker")
    chunks = await stream({"messages": CHAT}, runtime)
    assert chunks[-1]["error"]["message"] == "the voice broke (stage speaker)"
    assert all("error" not in chunk for chunk in chunks[:-1])
    assert not any(chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1])


async def test_an_answer_without_a_word_is_still_an_answer() -> None:
    """Fault: an empty answer breaks the shape: no choice, no audio object, no finish reason."""
    body = {"messages": CHAT, "modalities": ["text", "audio"]}
    _, whole = await ask(body, FakeRuntime(words=()))
    message = whole["choices"][0]["message"]
    assert (message["content"], len(base64.b64decode(message["audio"]["data"]))) == ("", 44)
    chunks = await stream(body, FakeRuntime(words=()))
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "stop"]


async def test_a_client_that_goes_before_the_answer_ends_its_request() -> None:
    """Fault: a traceback for somebody who is not there, or an answer that is made for nobody."""
    runtime = FakeRuntime()
    runtime.gate.clear()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    said = [{"type": "http.request", "body": json.dumps({"messages": CHAT}).encode(), "more_body": False}]

    async def receive() -> Any:
        return said.pop() if said else {"type": "http.disconnect"}

    scope = {"type": "http", "method": "POST", "path": PATH, "headers": [], "query_string": b"", "http_version": "1.1"}
    await create_app(serving_of(runtime))(scope, receive, send)
    assert sent[0]["status"] == 499
    assert list(runtime.aborted.values()) == ["the client has gone"]


async def test_metrics_of_a_request_come_with_its_reply() -> None:
    """Fault: a field that is accepted and has no effect."""
    _, body = await ask({"messages": CHAT, "include_metrics": True})
    assert 0 <= body["metrics"]["ttft_s"] <= body["metrics"]["e2el_s"]
    chunks = await stream({"messages": CHAT, "include_metrics": True})
    assert [chunk["metrics"]["attempts"] for chunk in chunks if "metrics" in chunk] == [1]


@pytest.mark.parametrize(
    "change",
    [
        {"x" * 15_000: 1},
        {"\ud800" * 2_500: 1},
        {"audio": {"x" * 15_000: 1}},
        {"stream_options": {"x" * 15_000: 1}, "stream": True},
        {"model": "x" * 15_000},
        {"temperature": "x" * 15_000},
        {"max_tokens": 1, "max_completion_tokens": "x" * 15_000},
        {"modalities": ["x" * 15_000]},
        {"modalities": ["audio"], "audio": {"voice": "x" * 15_000}},
        {"modalities": ["audio"], "audio": {"format": "x" * 15_000}},
        {"messages": [{"role": "x" * 15_000, "content": "Hi"}]},
        {"messages": [{"role": "user", "content": "Hi", "x" * 15_000: 1}]},
        {"messages": [{"role": "user", "content": [{"type": "x" * 15_000}]}]},
        {"sampling_params_list": [{"x" * 15_000: 1}]},
        {"logit_bias": {"x" * 15_000: 1}},
        {"tools": ["x" * 15_000]},
    ],
)
async def test_what_is_wrong_is_not_repeated_at_length(change: dict[str, Any]) -> None:
    """Fault: a refusal as long as the body, or one that hides what is accepted behind what was sent."""
    status, body = await ask({"messages": CHAT, **change})
    assert status in (400, 404), body
    error = body["error"]
    assert len(error["message"]) < 1500
    assert len(error["param"]) <= 120
    assert not error["message"].endswith("...")
