"""Chunks and replies, as values."""

import json
from typing import Any

import numpy as np
import pytest

from omnistage.core.output import CompletionOutput, OmniRequestOutput
from omnistage.core.request import Usage
from omnistage.serve.coding import filled
from omnistage.serve.render.chat import ChatFrame, ChatStreamState, completion_object, logprobs_object, usage_object
from omnistage.serve.render.sse import encode, event

TEXT = ChatFrame("chatcmpl-1", 100, "m")


def read(*pieces: bytes) -> list[dict[str, Any]]:
    """The chunks in pieces of a stream, each in an event of its own."""
    *events, rest = b"".join(pieces).split(b"\n\n")
    assert rest == b""
    assert all(event.startswith(b"data: ") for event in events)
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


def deltas(chunks: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    return [(choice["index"], choice["delta"]) for chunk in chunks for choice in chunk["choices"]]


def ended(reason: str | None, **metrics: Any) -> OmniRequestOutput:
    return OmniRequestOutput("r", 0, "text", finished=True, finish_reason=reason, metrics=metrics)


def test_several_choices_in_one_stream() -> None:
    """Fault: a choice without a role or an end of its own; one choice's reason told of another."""
    state = ChatStreamState(TEXT)
    chunks = read(
        state.text(CompletionOutput(1, "b")),
        state.text(CompletionOutput(0, "a")),
        state.text(CompletionOutput(1, "", finish_reason="length")),
        state.end(ended("stop"), Usage()),
    )
    assert deltas(chunks) == [
        (1, {"role": "assistant", "content": ""}),
        (1, {"content": "b"}),
        (0, {"role": "assistant", "content": ""}),
        (0, {"content": "a"}),
        (0, {}),
        (1, {}),
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-2:]] == ["stop", "length"]


def test_sound_before_any_text_begins_the_stream() -> None:
    """Fault: the first chunk has no role when sound is first."""
    state = ChatStreamState(ChatFrame("c", 100, "m", content=False, audio_id="audio_1"))
    chunks = read(state.audio(b"\x00\x01"), state.text(CompletionOutput(0, "a")), state.end(ended(None), Usage()))
    assert deltas(chunks) == [
        (0, {"role": "assistant", "content": None}),
        (0, {"audio": {"id": "audio_1", "data": "AAE="}}),
        (0, {"audio": {"id": "audio_1", "transcript": "a"}}),
        (0, {"audio": {"expires_at": 3700}}),
        (0, {}),
    ]


def test_tokens_without_text_still_carry_their_log_probabilities() -> None:
    """Fault: the log probability of a token that completes no character is lost."""
    entry = {"token_id": 5, "logprob": -0.25, "top": [[5, -0.25], [6, -2.0]]}
    [begin, chunk] = read(ChatStreamState(TEXT).text(CompletionOutput(0, "", (5,), None, (entry,))))
    assert begin["choices"][0]["logprobs"] is None
    assert chunk["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.25


def test_log_probabilities_are_spelt_where_the_stage_spells_them() -> None:
    """Fault: a token's text or bytes do not stand where clients look for them."""
    spelt = {"token_id": 5, "token": "é", "logprob": -0.5, "top": [[6, -2.0, "x"], [7, -3.0]]}
    assert logprobs_object(CompletionOutput(0, logprobs=(spelt, {"token_id": 1, "logprob": -1.0}))) == {
        "content": [
            {
                "token": "é",
                "logprob": -0.5,
                "bytes": [195, 169],
                "top_logprobs": [
                    {"token": "x", "logprob": -2.0, "bytes": [120]},
                    {"token": "token_id:7", "logprob": -3.0, "bytes": None},
                ],
            },
            {"token": "token_id:1", "logprob": -1.0, "bytes": None, "top_logprobs": []},
        ],
        "refusal": None,
    }
    assert logprobs_object(CompletionOutput(0)) is None
    half = {"token_id": 5, "token": "\ufffd", "logprob": -0.5, "top": []}
    told = logprobs_object(CompletionOutput(0, logprobs=(half,)))
    assert told is not None
    assert told["content"][0]["bytes"] is None


def test_a_whole_reply_without_text_or_sound() -> None:
    """Fault: an empty answer has no choice."""
    reply = completion_object(TEXT, OmniRequestOutput("r", 0, "text", True, "length"), Usage(prompt_tokens=2))
    assert [choice["message"]["content"] for choice in reply["choices"]] == [""]
    assert reply["choices"][0]["finish_reason"] == "length"
    assert "audio" not in reply["choices"][0]["message"]


def test_usage_adds_up() -> None:
    """Fault: the total is not the sum."""
    assert usage_object(Usage(prompt_tokens=3, cached_tokens=1, completion_tokens=4)) == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def test_an_event_is_one_line() -> None:
    """Fault: a line break in a text ends the event early."""
    assert event({"content": "a\nb"}) == b'data: {"content":"a\\nb"}\n\n'


def test_metrics_come_where_they_were_asked_for_and_the_usage_stays_last() -> None:
    """Fault: an extra that clients did not ask for, or one that stands where they look for the usage."""
    output = ended("stop", usage={0: {}}, ttft_s=0.5)
    frame = ChatFrame("chatcmpl-1", 100, "m", include_usage=True, include_metrics=True)
    *_, metrics, usage = read(ChatStreamState(frame).end(output, Usage()))
    assert (metrics["choices"], metrics["metrics"], metrics["usage"]) == ([], {"ttft_s": 0.5}, None)
    assert "metrics" not in usage and usage["usage"]["total_tokens"] == 0
    assert completion_object(frame, output, Usage())["metrics"] == {"ttft_s": 0.5}
    assert "metrics" not in completion_object(TEXT, output, Usage())
    assert not any("metrics" in chunk for chunk in read(ChatStreamState(TEXT).end(output, Usage())))


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_chunk_put_together_from_bytes_is_the_plain_object(include_usage: bool) -> None:
    """Fault: a field that all chunks share, or one of the choice, is missing, doubled, misplaced or not escaped."""
    said = 'a"\\\n\u2028é😀}],'
    entry = {"token_id": 5, "token": "é", "logprob": -0.5, "top": []}
    state = ChatStreamState(ChatFrame('c"1', 100, "m\n", audio_id="a", include_usage=include_usage))
    data = state.text(CompletionOutput(3, said, (5,), None, (entry,)))
    none = {"usage": None} if include_usage else {}

    def plain(delta: dict[str, Any], logprobs: dict[str, Any] | None) -> dict[str, Any]:
        choice = {"index": 3, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        head = {
            "id": 'c"1',
            "object": "chat.completion.chunk",
            "created": 100,
            "model": "m\n",
            "system_fingerprint": None,
        }
        return {**head, "choices": [choice], **none}

    begun = plain({"role": "assistant", "content": ""}, None)
    spoken = plain(
        {"content": said, "audio": {"id": "a", "transcript": said}},
        logprobs_object(CompletionOutput(3, logprobs=(entry,))),
    )
    assert data == event(begun) + event(spoken)


def test_pictures_are_parts_of_the_message() -> None:
    """Fault: pictures are dropped, or their URLs are escaped, or a message without any has the field."""
    frame = ChatFrame("c", 100, "m", content=False, images=True)
    file = b"\x00\x0f\xbf"
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA+/"}}
    images = (np.zeros((1, 1, 3), np.uint8),) * 2
    output = OmniRequestOutput("r", 0, "image", finished=True, finish_reason="stop", images=images)
    reply = json.loads(b"".join(filled(encode(completion_object(frame, output, Usage())), [file, file])))
    message = reply["choices"][0]["message"]
    assert (message["content"], message["images"]) == (None, [part, part])
    state = ChatStreamState(frame)
    role, shown, end = read(b"".join(filled(state.images(1), [file])), state.end(output, Usage()))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert shown["choices"][0]["delta"] == {"images": [part]}
    assert end["choices"][0]["finish_reason"] == "stop"
    assert "images" not in completion_object(TEXT, output, Usage())["choices"][0]["message"]


@pytest.mark.parametrize(("audio_id", "expected"), [("audio_1", "length"), (None, "stop")])
def test_speech_that_was_cut_shows_although_its_text_is_whole(audio_id: str | None, expected: str) -> None:
    """Fault: half of an answer is spoken and the reply says that it came to its natural end."""
    frame = ChatFrame("c", 100, "m", audio_id=audio_id)
    text = CompletionOutput(0, "a", finish_reason="stop")
    state = ChatStreamState(frame)
    chunks = read(state.text(text), state.end(ended("length"), Usage()))
    assert chunks[-1]["choices"][0]["finish_reason"] == expected
    whole = OmniRequestOutput("r", 0, "text", finished=True, finish_reason="length", outputs=(text,))
    assert completion_object(frame, whole, Usage())["choices"][0]["finish_reason"] == expected
