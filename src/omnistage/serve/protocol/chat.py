"""POST /v1/chat/completions: OpenAI's fields, the sampling fields that vLLM adds, and what becomes of each.

A null is a field that was not sent. Every accepted field has an effect, but for those in WITHOUT_MEANING. A field that
asks for something that is not served (tools, schemas) passes only with a value that asks for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omnistage.core.errors import InvalidRequestError, shortened
from omnistage.serve.protocol.strict import Given, Strict

WITHOUT_MEANING = ("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key")
"""Sent by official clients; accepted and ignored."""

ASKING_FOR_NOTHING: Mapping[str, tuple[object, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields that the engine cannot serve, with the values under which there is nothing to serve."""

_SAME_NAME = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "seed",
)


class AudioOptions(Strict):
    """`voice` is a name, or OpenAI's {"id": name}; `format` as in `media.FORMATS`."""

    voice: Given = None
    format: Given = None


class StreamOptions(Strict):
    """`include_obfuscation` pads chunks where traffic is watched; there is none to ask for here."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatRequest(Strict):
    """The body. What is `Given` is checked by admission or in `sampling_fields`."""

    messages: Given
    model: str | None = None
    modalities: Given = None
    audio: AudioOptions | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    sampling_params_list: Given = None
    priority: Given = None
    include_metrics: bool | None = None

    n: Given = None
    temperature: Given = None
    top_p: Given = None
    top_k: Given = None
    min_p: Given = None
    repetition_penalty: Given = None
    presence_penalty: Given = None
    frequency_penalty: Given = None
    logit_bias: Given = None
    logprobs: bool | None = None
    top_logprobs: Given = None
    stop: Given = None
    stop_token_ids: Given = None
    include_stop_str_in_output: Given = None
    min_tokens: Given = None
    max_tokens: Given = None
    max_completion_tokens: Given = None
    ignore_eos: Given = None
    skip_special_tokens: Given = None
    seed: Given = None

    tools: Given = None
    tool_choice: Given = None
    functions: Given = None
    function_call: Given = None
    parallel_tool_calls: Given = None
    response_format: Given = None
    prediction: Given = None
    reasoning_effort: Given = None
    verbosity: Given = None
    web_search_options: Given = None
    mm_processor_kwargs: Given = None

    user: Given = None
    store: Given = None
    metadata: Given = None
    service_tier: Given = None
    safety_identifier: Given = None
    prompt_cache_key: Given = None


def check_combinations(body: ChatRequest, modalities: Sequence[str]) -> None:
    """What single fields cannot show. `modalities` are those that are asked for, checked. Raises InvalidRequestError."""
    if body.messages is None:
        raise InvalidRequestError.of("messages", None, "a list of messages that is not empty")
    for name, neutral in ASKING_FOR_NOTHING.items():
        value = getattr(body, name)
        if value is not None and not any(value == option and type(value) is type(option) for option in neutral):
            accepted = " or ".join(["null", *(repr(option) for option in neutral)])
            raise InvalidRequestError.of(name, value, f"{accepted}, as this server does not serve it")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options: only accepted where stream is true", field="stream_options")
    if body.audio is not None and "audio" not in modalities:
        raise InvalidRequestError('audio: only accepted where modalities has "audio"', field="audio")


def sampling_fields(body: ChatRequest) -> dict[str, Any]:
    """The fields that name no stage, under the engine's names and in its forms."""
    fields = {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    limit = _token_limit(body)
    if limit is not None:
        fields["max_tokens"] = limit
    chosen = _logprobs(body)
    if chosen is not None:
        fields["logprobs"] = chosen
    if body.audio is not None and body.audio.voice is not None:
        fields["voice"] = _voice(body.audio.voice)
    return fields


def as_sent(body: ChatRequest, error: InvalidRequestError) -> InvalidRequestError:
    """`error` with the field's name as the client wrote it, where the engine has another name for it."""
    sent = {
        "max_tokens": "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens",
        "logprobs": "top_logprobs",
        "voice": "audio.voice",
        "logit_bias key": "logit_bias",
        "prompt": "messages",
    }.get(error.field or "")
    if sent is None or error.field is None:
        return error
    return InvalidRequestError(sent + error.message.removeprefix(error.field), field=sent)


def _voice(value: object) -> object:
    match value:
        case {"id": name} if isinstance(value, dict) and len(value) == 1:
            return name
        case _:
            return value


def _token_limit(body: ChatRequest) -> object:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequestError.of(
            "max_tokens", old, f"the same as max_completion_tokens ({shortened(repr(new))}), or one of the two"
        )
    return old if new is None else new


def _logprobs(body: ChatRequest) -> object:
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs: only accepted where logprobs is true", field="top_logprobs")
    if not body.logprobs:
        return None
    return 0 if body.top_logprobs is None else body.top_logprobs
