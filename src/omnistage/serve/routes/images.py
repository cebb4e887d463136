"""POST /v1/images/generations and /v1/images/edits: pictures out of a prompt, and out of pictures, whole and streamed.

They are answered by the stage whose final output is pictures. A refusal, and a failure before the first part, has a status of its
own; a failure after it is one error event, and the stream ends. A client that goes ends its request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import Response

from omnistage.core.errors import InvalidRequestError, OmniError
from omnistage.core.output import OmniRequestOutput
from omnistage.core.params import DiffusionParams
from omnistage.engine.admission import Ask, stage_params
from omnistage.engine.outputs import usage_of
from omnistage.serve.client import EventStream, FilledJson, until_gone
from omnistage.serve.coding import filled
from omnistage.serve.errors import error_object
from omnistage.serve.pictures import PictureFormat, all_encoded, require_readable
from omnistage.serve.protocol.form import FORM
from omnistage.serve.protocol.images import (
    EditRequest,
    GenerationRequest,
    as_sent,
    as_url,
    drawing_fields,
    edit_request,
    picture_format,
    prompt_of,
)
from omnistage.serve.protocol.strict import parsed
from omnistage.serve.render.images import (
    ImageFrame,
    ShownPicture,
    completed_event,
    images_object,
    partial_event,
    size_of,
)
from omnistage.serve.render.sse import encode, event
from omnistage.serve.serving import Outputs, Serving

GENERATIONS = "/v1/images/generations"
EDITS = "/v1/images/edits"


@dataclass(frozen=True, slots=True)
class Reply:
    """How to answer. `count` pictures come. `body` tells how the client wrote what may yet be refused."""

    frame: ImageFrame
    form: PictureFormat
    url: bool
    count: int
    body: GenerationRequest


def router(serving: Serving) -> APIRouter:
    routes = APIRouter()

    @routes.post(GENERATIONS, openapi_extra=_schema("application/json", GenerationRequest))
    async def generations(request: Request) -> Response:
        body = await parsed(GenerationRequest, await serving.read_body(request))
        return await _answer(serving, request, body, GENERATIONS)

    @routes.post(EDITS, openapi_extra=_schema(FORM, EditRequest))
    async def edits(request: Request) -> Response:
        return await _answer(serving, request, await _edit(serving, request), EDITS)

    return routes


def _schema(content_type: str, body: type[GenerationRequest]) -> dict[str, object]:
    return {"requestBody": {"content": {content_type: {"schema": body.model_json_schema()}}}}


async def _edit(serving: Serving, request: Request) -> EditRequest:
    """What a form asks for, read in a thread: it holds files."""
    body, told = await serving.read_body(request), request.headers.get("content-type", "")
    return await asyncio.to_thread(edit_request, told, body, serving.engine.model.max_media_nbytes)


async def _answer(serving: Serving, request: Request, body: GenerationRequest, path: str) -> Response:
    serving.require_model(body.model)
    serving.require_endpoint(path)
    serving.require_maker(path, "image")
    try:
        ask, reply = reply_to(serving, body)
        if isinstance(body, EditRequest):
            await asyncio.to_thread(require_readable, body.media)
            body.image = body.mask = None  # which may be megabytes, while the answer takes its time
        beginning = serving.begun(ask)
        del ask
        first, outputs = await until_gone(request.receive, beginning)
    except InvalidRequestError as error:
        raise as_sent(body, error) from None
    if body.stream:
        return EventStream(events(serving, reply, first, outputs), outputs.aclose)
    await outputs.aclose()
    return await whole_reply(serving, reply, first)


def reply_to(serving: Serving, body: GenerationRequest) -> tuple[Ask, Reply]:
    """What to ask of the engine, and how to answer."""
    model = serving.engine.model
    form, url = picture_format(body), as_url(body)
    ask = Ask(
        prompt_of(body),
        fields=drawing_fields(body),
        fields_of="image",
        wants=("image",),
        priority=0 if body.priority is None else body.priority,
        stream=bool(body.stream),
    )
    drawing = stage_params(model, ask)[model.maker("image").stage_id]
    count = drawing.n if isinstance(drawing, DiffusionParams) else 1
    kind = "image_edit" if isinstance(body, EditRequest) else "image_generation"
    frame = ImageFrame(kind, int(time.time()), form.name, "opaque" if form.opaque else "auto")
    return ask, Reply(frame, form, url, count, body)


async def whole_reply(serving: Serving, reply: Reply, output: OmniRequestOutput) -> Response:
    files = await all_encoded(output.images, reply.form)
    shown = [ShownPicture(size_of(image.shape)) for image in output.images]
    usage = usage_of(serving.engine.model, output)
    return FilledJson(encode(images_object(reply.frame, shown, usage, url=reply.url)), files)


async def events(
    serving: Serving, reply: Reply, first: OmniRequestOutput, outputs: Outputs
) -> AsyncGenerator[bytes, None]:
    """All events of a stream in pieces; the last one says why it broke off, where it did."""
    state = StreamedPicturesState(serving, reply)
    try:
        for piece in await state.pieces(first):
            yield piece
        async for output in outputs:
            for piece in await state.pieces(output):
                yield piece
    except OmniError as error:
        told = as_sent(reply.body, error) if isinstance(error, InvalidRequestError) else error
        serving.metrics.refused(told.code)
        yield event(error_object(told))


class StreamedPicturesState:
    """Turns the parts of one answer into events; keeps the last picture back until the usage is known."""

    def __init__(self, serving: Serving, reply: Reply) -> None:
        self._serving = serving
        self._reply = reply
        self._missing = reply.count
        self._last: tuple[ShownPicture, bytes] | None = None

    async def pieces(self, output: OmniRequestOutput) -> Iterator[bytes]:
        """The event for what is new in one part. Nothing where that is no picture."""
        frame = self._reply.frame
        if output.finished and self._last is not None:
            shown, file = self._last
            return filled(completed_event(frame, shown, usage_of(self._serving.engine.model, output)), [file])
        payload = output.multimodal_output
        if "image" not in payload.tensors:
            return iter(())
        pixels = payload.numpy("image")
        [file] = await all_encoded([pixels], self._reply.form)
        shown = ShownPicture(size_of(pixels.shape), payload.metadata.get("index", 0))
        if "partial" in payload.metadata:
            return filled(partial_event(frame, shown, payload.metadata["partial"]), [file])
        self._missing -= 1
        if self._missing:
            return filled(completed_event(frame, shown, None), [file])
        self._last = shown, file
        return iter(())
