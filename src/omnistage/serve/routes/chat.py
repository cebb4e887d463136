"""POST /v1/chat/completions: text and media in; text, speech and pictures out, whole and streamed.

A refusal, and a failure before the first piece, has a status of its own; a failure after it is one error event, and the
stream ends. A client that goes ends its request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, replace
from uuid import uuid4

from fastapi import APIRouter, Request
from fastapi.responses import Response

from omnistage.core.errors import InvalidRequestError, OmniError
from omnistage.core.output import OmniRequestOutput
from omnistage.engine.admission import Ask, read_modalities
from omnistage.engine.outputs import usage_of
from omnistage.serve.client import EventStream, FilledJson, until_gone
from omnistage.serve.coding import filled
from omnistage.serve.errors import error_object
from omnistage.serve.media import DEFAULT_RATE, SHORT_SAMPLES, SILENCE, audio_format, encoded, streamed
from omnistage.serve.pictures import all_encoded
from omnistage.serve.protocol.chat import ChatRequest, as_sent, check_combinations, sampling_fields
from omnistage.serve.protocol.strict import parsed
from omnistage.serve.render.chat import ChatFrame, ChatStreamState, completion_object
from omnistage.serve.render.sse import DONE, encode, event
from omnistage.serve.serving import Outputs, Serving

PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Reply:
    """How to answer: in pieces or whole, the frame of the reply, and the sound's format. `body` tells how the client wrote what
    may yet be refused."""

    stream: bool
    frame: ChatFrame
    audio_format: str
    body: ChatRequest


def router(serving: Serving) -> APIRouter:
    routes = APIRouter()
    schema = {"requestBody": {"content": {"application/json": {"schema": ChatRequest.model_json_schema()}}}}

    @routes.post(PATH, openapi_extra=schema)
    async def chat_completions(request: Request) -> Response:
        body = await parsed(ChatRequest, await serving.read_body(request))
        serving.require_model(body.model)
        serving.require_endpoint(PATH)
        ask, reply = reply_to(serving, body)
        beginning = serving.begun(ask)
        body.messages = None  # which may be megabytes, while the answer takes its time
        del ask
        try:
            first, outputs = await until_gone(request.receive, beginning)
        except InvalidRequestError as error:
            raise as_sent(body, error) from None
        reply = replace(reply, frame=replace(reply.frame, reply_id=f"chatcmpl-{first.request_id}"))
        if reply.stream:
            return EventStream(events(serving, reply, first, outputs), outputs.aclose)
        await outputs.aclose()
        return await whole_reply(serving, reply, first)

    return routes


def reply_to(serving: Serving, body: ChatRequest) -> tuple[Ask, Reply]:
    """What to ask of the engine, and how to answer.
    Where speech is wanted its text is asked for too: it is the speech's transcript."""
    model = serving.engine.model
    asked = read_modalities(model, ["text"] if body.modalities is None else body.modalities)
    check_combinations(body, asked)
    spoken = "audio" in asked
    wants = tuple(dict.fromkeys((*asked, "text"))) if spoken and "text" in model.modalities else asked
    stream = bool(body.stream)
    options = {} if body.mm_processor_kwargs in (None, {}) else {"mm_processor_kwargs": body.mm_processor_kwargs}
    ask = Ask(
        {"messages": body.messages, **options},
        body.sampling_params_list,
        fields=sampling_fields(body),
        wants=wants,
        priority=0 if body.priority is None else body.priority,
        stream=stream,
    )
    frame = ChatFrame(
        reply_id="",  # the request's own id, once it has one: it stands in the log as well
        created=int(time.time()),
        model=serving.model_name,
        content="text" in asked,
        images="image" in asked,
        audio_id=f"audio_{uuid4().hex}" if spoken else None,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        include_metrics=bool(body.include_metrics),
    )
    given = None if body.audio is None else body.audio.format
    return ask, Reply(stream, frame, audio_format(given, streamed=stream), body)


async def whole_reply(serving: Serving, reply: Reply, output: OmniRequestOutput) -> Response:
    files = []
    if reply.frame.audio_id is not None:
        files.append(await asyncio.to_thread(_whole_audio, output, reply.audio_format))
    files += await all_encoded(output.images)
    text = encode(completion_object(reply.frame, output, usage_of(serving.engine.model, output)))
    return FilledJson(text, files)


async def events(
    serving: Serving, reply: Reply, first: OmniRequestOutput, outputs: Outputs
) -> AsyncGenerator[bytes, None]:
    """All events of a stream, the last of which says that it is over, or why it broke off. What one output brings comes as one
    piece."""
    state = StreamedAnswerState(serving, reply)
    try:
        if piece := await state.events(first):
            yield piece
        async for output in outputs:
            if piece := await state.events(output):
                yield piece
            if output.images:
                for piece in await state.pictures(output):
                    yield piece
    except OmniError as error:
        told = as_sent(reply.body, error) if isinstance(error, InvalidRequestError) else error
        serving.metrics.refused(told.code)
        yield event(error_object(told))


class StreamedAnswerState:
    """Turns the parts of one answer into events; knows whether sound has been sent already."""

    def __init__(self, serving: Serving, reply: Reply) -> None:
        self._serving = serving
        self._form = reply.audio_format
        self._chat = ChatStreamState(reply.frame)
        self._silent = True

    async def events(self, output: OmniRequestOutput) -> bytes:
        """What is new in one part. Empty where that is nothing to read or to hear."""
        if output.finished:
            return self._silence() + self._chat.end(output, usage_of(self._serving.engine.model, output)) + DONE
        events = b"".join(map(self._chat.text, output.outputs))
        if "audio" in output.multimodal_output.tensors:
            events += self._chat.audio(await self._audio(output))
        return events

    async def pictures(self, output: OmniRequestOutput) -> Iterator[bytes]:
        """The event for whole pictures, in pieces."""
        return filled(self._chat.images(len(output.images)), await all_encoded(output.images))

    def _silence(self) -> bytes:
        """The event for a file without a sample, where there was nothing to be heard: its header, in a format that has one."""
        if not self._silent or self._chat.frame.audio_id is None:
            return b""
        header = streamed(SILENCE, DEFAULT_RATE, self._form, first=True)
        return self._chat.audio(header) if header else b""

    async def _audio(self, output: OmniRequestOutput) -> bytes:
        first, self._silent = self._silent, False
        if output.multimodal_output.tensors["audio"].spec.shape[-1] <= SHORT_SAMPLES:
            return _streamed_audio(output, self._form, first)
        return await asyncio.to_thread(_streamed_audio, output, self._form, first)


def _whole_audio(output: OmniRequestOutput, form: str) -> bytes:
    payload = output.multimodal_output
    samples = payload.numpy("audio") if "audio" in payload.tensors else SILENCE
    return encoded(samples, payload.metadata.get("sample_rate", DEFAULT_RATE), form)


def _streamed_audio(output: OmniRequestOutput, form: str, first: bool) -> bytes:
    payload = output.multimodal_output
    return streamed(payload.numpy("audio"), payload.metadata.get("sample_rate", DEFAULT_RATE), form, first=first)
