"""The official client against a live port: whole and streamed, with and without speech, and how it sees errors."""

import base64
import time
from collections.abc import Iterator

import openai
import pytest

from tests.fakes_runtime import FakeRuntime
from tests.runtime.harness import eventually
from tests.serve.live import ask_and_leave, live, serving_of


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with live(serving_of(FakeRuntime(), api_key="secret")) as base:
        yield base


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="secret", max_retries=0, timeout=10) as one:
        yield one


def test_a_whole_answer(client: openai.OpenAI) -> None:
    """Fault: the client cannot read a reply, or misses part of it."""
    reply = client.chat.completions.create(
        model="talker", messages=[{"role": "user", "content": "Hi"}], seed=1, user="someone", store=False
    )
    assert reply.choices[0].message.content == "Hello world."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 2


def test_a_whole_spoken_answer(client: openai.OpenAI) -> None:
    """Fault: the audio object is not what the client knows."""
    reply = client.chat.completions.create(
        model="talker",
        messages=[{"role": "user", "content": "Hi"}],
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
    )
    sound = reply.choices[0].message.audio
    assert sound is not None
    assert (base64.b64decode(sound.data)[:4], sound.transcript) == (b"RIFF", "Hello world.")
    assert sound.expires_at > time.time()


def test_a_streamed_spoken_answer(client: openai.OpenAI) -> None:
    """Fault: delta.audio gets lost on its way through the client, or the stream does not end."""
    stream = client.chat.completions.create(
        model="talker",
        messages=[{"role": "user", "content": "Hi"}],
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "pcm16"},
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    sounds = [delta.audio for delta in deltas if delta.audio is not None]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "Hello world."
    assert sum(len(base64.b64decode(sound.data or "")) for sound in sounds) == 2 * 480
    assert "".join(sound.transcript or "" for sound in sounds) == "Hello world."
    assert sounds[-1].expires_at is not None
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_models(client: openai.OpenAI) -> None:
    """Fault: the client finds no model, or one that is not there."""
    assert [model.id for model in client.models.list()] == ["talker"]
    assert client.models.retrieve("talker").owned_by == "omnistage"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other/name")


def test_errors_become_the_client_s_own(client: openai.OpenAI, address: str) -> None:
    """Fault: a refusal that the client cannot tell from a failure of the server."""
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        client.chat.completions.create(model="talker", messages=[{"role": "user", "content": "Hi"}], temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "Hi"}])
    with pytest.raises(openai.AuthenticationError), openai.OpenAI(base_url=f"{address}/v1", api_key="x") as stranger:
        stranger.models.list()


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_ends_its_request(streamed: bool) -> None:
    """Fault: the stages go on speaking to nobody."""
    runtime = FakeRuntime()
    runtime.gate.clear()
    with live(serving_of(runtime)) as base:
        body = {"messages": [{"role": "user", "content": "Hi"}], "stream": streamed}
        ask_and_leave(base, "/v1/chat/completions", body, runtime)
        assert eventually(lambda: bool(runtime.aborted))
        assert list(runtime.aborted) == [runtime.submitted[0].request_id], "the end of a server aborts everything"
