"""Outputs of the engine in the shape of OpenAI's chat completions, whole and streamed. Pure: time and bytes come in.

Text stands in `content` where text was asked for, and in the audio object's `transcript` where audio was asked for. Pictures stand
in `images`, as parts of a message that hold data: URLs. Whole sounds and pictures are holes (serve.coding), sound first.
A stream's events per choice: role first; content, audio and images as they come; the audio object's expiry; the finish reason.
Then, if asked for, one event with the request's metrics, and one with the usage. Times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omnistage.core.output import CompletionOutput, OmniRequestOutput
from omnistage.core.request import Usage
from omnistage.serve.coding import base64_of, hole, url_head
from omnistage.serve.render.sse import encode

AUDIO_LIFETIME_S = 3600

_BROKEN = "\ufffd"
_NO_MORE = b',"logprobs":null,"finish_reason":null}'
"""How a choice ends that is nothing but new sound."""


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """What all chunks of one reply share. `content`: text was asked for; `images`: pictures were; `audio_id`: None where audio was
    not."""

    reply_id: str
    created: int
    model: str
    content: bool = True
    images: bool = False
    audio_id: str | None = None
    include_usage: bool = False
    include_metrics: bool = False

    @property
    def expires_at(self) -> int:
        return self.created + AUDIO_LIFETIME_S


class ChatStreamState:
    """Which choices have begun, and how those that have ended did. Every method answers with the bytes of events.

    What all events share is encoded once: between the head and the tail of an event stand its choices.
    """

    def __init__(self, frame: ChatFrame) -> None:
        self.frame = frame
        self.finish_reasons: dict[int, str | None] = {}
        shared = {
            "id": frame.reply_id,
            "object": "chat.completion.chunk",
            "created": frame.created,
            "model": frame.model,
            "system_fingerprint": None,
        }
        self._head = b"data: " + encode(shared)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if frame.include_usage else b"]}\n\n"

    def text(self, completion: CompletionOutput) -> bytes:
        """The events for new text of one choice."""
        begin = self._begin(completion.index)
        if completion.finish_reason is not None:
            self.finish_reasons[completion.index] = completion.finish_reason
        delta: dict[str, Any] = {}
        if self.frame.content and completion.text:
            delta["content"] = completion.text
        if self.frame.audio_id is not None and completion.text:
            delta["audio"] = {"id": self.frame.audio_id, "transcript": completion.text}
        logprobs = logprobs_object(completion)
        if delta or logprobs is not None:
            return begin + self._choice(completion.index, delta, logprobs=logprobs)
        return begin

    def audio(self, data: bytes) -> bytes:
        """The events for new sound, already in the reply's format."""
        begin, audio_id = self._begin(0), encode(self.frame.audio_id)
        # Nothing in base64 is to be escaped: it goes in as it is, copied once.
        delta = (b'{"audio":{"id":', audio_id, b',"data":"', base64_of(data), b'"}}')
        return b"".join((begin, self._head, b'{"index":0,"delta":', *delta, _NO_MORE, self._tail))

    def images(self, count: int) -> bytes:
        """The event for whole pictures."""
        return self._begin(0) + self._choice(0, {"images": image_parts(count)})

    def end(self, output: OmniRequestOutput, usage: Usage) -> bytes:
        """The events after the last piece of text and sound."""
        events = [] if self.finish_reasons else [self._begin(0)]
        if self.frame.audio_id is not None:
            events.append(self._choice(0, {"audio": {"expires_at": self.frame.expires_at}}))
        for index in sorted(self.finish_reasons):
            reason = openai_reason(_reason(self.frame, self.finish_reasons[index], output))
            events.append(self._choice(index, {}, finish_reason=reason))
        if self.frame.include_metrics:
            events.append(b'%b],"metrics":%b%b' % (self._head, encode(metrics_object(output)), self._tail[1:]))
        if self.frame.include_usage:
            events.append(b'%b],"usage":%b}\n\n' % (self._head, encode(usage_object(usage))))
        return b"".join(events)

    def _begin(self, index: int) -> bytes:
        if index in self.finish_reasons:
            return b""
        self.finish_reasons[index] = None
        return self._choice(index, {"role": "assistant", "content": "" if self.frame.content else None})

    def _choice(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        finish_reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> bytes:
        """The event with one choice."""
        told = b"null" if logprobs is None else encode(logprobs)
        ended = b"null" if finish_reason is None else encode(finish_reason)
        choice = b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}' % (index, encode(delta), told, ended)
        return self._head + choice + self._tail


def completion_object(frame: ChatFrame, output: OmniRequestOutput, usage: Usage) -> dict[str, Any]:
    """The whole reply."""
    completions = output.outputs or (CompletionOutput(0),)
    measured = {"metrics": metrics_object(output)} if frame.include_metrics else {}
    return {
        "id": frame.reply_id,
        "object": "chat.completion",
        "created": frame.created,
        "model": frame.model,
        "system_fingerprint": None,
        "choices": [_choice(frame, output, completion) for completion in completions],
        "usage": usage_object(usage),
        **measured,
    }


def metrics_object(output: OmniRequestOutput) -> dict[str, Any]:
    """How long what took (engine.records); what was used stands in `usage`."""
    return {name: value for name, value in output.metrics.items() if name != "usage"}


def image_parts(count: int) -> list[dict[str, Any]]:
    """Pictures as a message shows them."""
    return [{"type": "image_url", "image_url": {"url": hole(url_head("png"))}}] * count


def _choice(frame: ChatFrame, output: OmniRequestOutput, completion: CompletionOutput) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": completion.text if frame.content else None,
        "refusal": None,
    }
    if frame.audio_id is not None:
        message["audio"] = {
            "id": frame.audio_id,
            "data": hole(),
            "transcript": completion.text,
            "expires_at": frame.expires_at,
        }
    if frame.images:
        message["images"] = image_parts(len(output.images))
    return {
        "index": completion.index,
        "message": message,
        "logprobs": logprobs_object(completion),
        "finish_reason": openai_reason(_reason(frame, completion.finish_reason, output)),
    }


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _reason(frame: ChatFrame, of_text: str | None, output: OmniRequestOutput) -> str | None:
    """Why a choice ended. Speech has stages of its own: where one of them was cut, the answer is, although its text is whole."""
    is_cut = frame.audio_id is not None and output.finish_reason == "length"
    return "length" if is_cut else of_text or output.finish_reason


def openai_reason(reason: str | None) -> str:
    """The stages' reasons in OpenAI's words: a cut is `length`, everything else a natural end."""
    return "length" if reason == "length" else "stop"


def logprobs_object(completion: CompletionOutput) -> dict[str, Any] | None:
    """Log probabilities as OpenAI has them; None where none were asked for."""
    if completion.logprobs is None:
        return None
    return {"content": [_token(entry) for entry in completion.logprobs], "refusal": None}


def _token(entry: dict[str, Any]) -> dict[str, Any]:
    top: Sequence[Sequence[Any]] = entry.get("top") or ()
    said = _spelt(entry["token_id"], entry["logprob"], entry.get("token"))
    return {**said, "top_logprobs": [_spelt(*other) for other in top]}


def _spelt(token_id: int, logprob: float, token: str | None = None) -> dict[str, Any]:
    """A token that is a part of a character has no bytes that could be told from its text."""
    text = f"token_id:{token_id}" if token is None else token
    whole = token is not None and _BROKEN not in token
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if whole else None}
