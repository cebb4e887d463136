"""POST /v1/images/generations and /v1/images/edits: OpenAI's fields, those of diffusion models, and what becomes of each.

A null is a field that was not sent. Every accepted field has an effect, but for those in WITHOUT_MEANING. An edit comes as a form,
whose fields are texts: those in NOT_TEXT are read as JSON would write them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.engine.encoded import require_size
from omnistage.serve.pictures import FORMATS, PictureFormat
from omnistage.serve.protocol.form import Part, read_form
from omnistage.serve.protocol.strict import Given, Strict, checked

WITHOUT_MEANING = ("quality", "style", "user", "moderation", "safety_identifier", "input_fidelity")
"""Sent by official clients; accepted and ignored."""
NOT_TEXT = (
    "n",
    "seed",
    "steps",
    "num_inference_steps",
    "guidance_scale",
    "true_cfg_scale",
    "output_compression",
    "partial_images",
    "stream",
    "priority",
)
MOST_IMAGES = 16
"""Of an edit."""

_SAME_NAME = ("n", "seed", "guidance_scale", "true_cfg_scale", "negative_prompt", "partial_images")
_SIZE = re.compile("([0-9]{1,9})x([0-9]{1,9})")
_LIST = "[]"
"""Behind the name of a form's field that may come several times."""


class GenerationRequest(Strict):
    """What both endpoints take. What is `Given` is checked by admission, in `drawing_fields` or in `picture_format`."""

    prompt: Given
    model: str | None = None
    n: Given = None
    size: Given = None
    seed: Given = None
    steps: Given = None
    num_inference_steps: Given = None
    guidance_scale: Given = None
    true_cfg_scale: Given = None
    negative_prompt: Given = None
    output_format: Given = None
    output_compression: Given = None
    background: Given = None
    response_format: Given = None
    stream: bool | None = None
    partial_images: Given = None
    priority: Given = None

    quality: Given = None
    style: Given = None
    user: Given = None
    moderation: Given = None
    safety_identifier: Given = None


class EditRequest(GenerationRequest):
    """`image`: one picture or several, as files; `mask` one more."""

    image: Given
    mask: Given = None

    input_fidelity: Given = None

    @property
    def media(self) -> list[Media]:
        """The pictures, and behind them the mask."""
        return [*self.image, *([] if self.mask is None else [self.mask])]


# ---- from a form to a request ----------------------------------------------------------------------------------------


def edit_request(content_type: str, body: bytes, most_nbytes: int) -> EditRequest:
    """The request of a form whose pictures may have `most_nbytes` together. Raises InvalidRequestError."""
    parts = read_form(content_type, body)
    images = [part for part in parts if part.name in ("image", "image" + _LIST)]
    if len(images) > MOST_IMAGES:
        raise InvalidRequestError.of("image", f"{len(images)} images", f"at most {MOST_IMAGES}")
    values: dict[str, Any] = {}
    for part in parts:
        if part in images:
            continue
        if part.name in values:
            raise InvalidRequestError(f"{part.name}: stands twice in the form; accepted: once", field=part.name)
        values[part.name] = part if part.name == "mask" else _value(part)
    read = _media("image", images)
    if read:
        values["image"] = read
    if "mask" in values:
        [values["mask"]] = _media("mask", [values["mask"]])
    request = checked(EditRequest, values)
    require_size(sum(len(media.data) for media in request.media), "image", most_nbytes)
    return request


def _media(kind: Any, parts: Sequence[Part]) -> list[Media]:
    """Named as in the form, with an index where there are several."""
    read = []
    for index, part in enumerate(parts):
        where = f"{kind}[{index}]" if len(parts) > 1 else kind
        if not part.data:
            raise InvalidRequestError(f"{where}: is empty; accepted: an encoded picture", field=where)
        read.append(Media(kind=kind, data=part.data, where=where))
    return read


def _value(part: Part) -> object:
    text = part.text
    if part.name not in NOT_TEXT:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text  # whoever checks it repeats it


# ---- what is asked ---------------------------------------------------------------------------------------------------


def prompt_of(body: GenerationRequest) -> dict[str, Any]:
    """The prompt as the engine reads it. Raises InvalidRequestError."""
    if body.prompt is None:
        raise InvalidRequestError.of("prompt", None, "a string that is not blank")
    prompt = {"prompt": body.prompt}
    if not isinstance(body, EditRequest):
        return prompt
    return {**prompt, "multi_modal_data": {"image": body.image, **({} if body.mask is None else {"mask": body.mask})}}


def drawing_fields(body: GenerationRequest) -> dict[str, Any]:
    """The fields for the stage that draws, under the engine's names. Raises InvalidRequestError."""
    fields = {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    if body.partial_images is not None and body.partial_images != 0 and not body.stream:
        raise InvalidRequestError("partial_images: only accepted where stream is true", field="partial_images")
    steps = _steps(body)
    return fields | ({} if steps is None else {"num_inference_steps": steps}) | sides_of(body.size)


def picture_format(body: GenerationRequest) -> PictureFormat:
    """How pictures are encoded. Raises InvalidRequestError."""
    name = _one_of("output_format", body.output_format, FORMATS)
    opaque = (
        _one_of("background", body.background, ("auto", "opaque"), "as this server draws what is opaque") == "opaque"
    )
    quality = body.output_compression
    if quality is None:
        return PictureFormat(name, opaque=opaque)
    if type(quality) is not int or not 0 <= quality <= 100:
        raise InvalidRequestError.of("output_compression", quality, "an integer in [0, 100]")
    if name == "png" and quality != 100:
        raise InvalidRequestError.of(
            "output_compression", quality, "100 for png, which loses nothing; jpeg and webp take less"
        )
    return PictureFormat(name, quality, opaque)


def as_url(body: GenerationRequest) -> bool:
    """True if pictures are to come as data: URLs. Raises InvalidRequestError."""
    accepted = ("b64_json",) if body.stream else ("b64_json", "url")
    why = "as events of a stream have no other" if body.stream else ""
    return _one_of("response_format", body.response_format, accepted, why) == "url"


def as_sent(body: GenerationRequest, error: InvalidRequestError) -> InvalidRequestError:
    """`error` with the field's name as the client wrote it, where the engine has another name for it."""
    match error.field:
        case "height" | "width":
            return InvalidRequestError(f"size: {error.message}", field="size")
        case "num_inference_steps" if body.steps is not None:
            return _renamed(error, "steps")
        case "multi_modal_data":
            return _renamed(error, "image")
        case str() as field if field.startswith("multi_modal_data."):
            return _renamed(error, field.removeprefix("multi_modal_data."))
    return error


def _renamed(error: InvalidRequestError, name: str) -> InvalidRequestError:
    return InvalidRequestError(name + error.message.removeprefix(error.field or ""), field=name)


def _one_of(name: str, value: object, accepted: Sequence[str], why: str = "") -> str:
    """`value`, by default the first of `accepted`."""
    if value is None:
        return accepted[0]
    if not isinstance(value, str) or value not in accepted:
        raise InvalidRequestError.of(name, value, f"one of {', '.join(accepted)}" + (f", {why}" if why else ""))
    return value


def _steps(body: GenerationRequest) -> object:
    short, long = body.steps, body.num_inference_steps
    if short is not None and long is not None and short != long:
        raise InvalidRequestError.of("steps", short, "the same as num_inference_steps, or one of the two")
    return long if short is None else short


def sides_of(size: object) -> dict[str, int]:
    """`size` as height and width in pixels; nothing where the model is to choose."""
    if size is None or size == "auto":
        return {}
    sides = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if sides is None:
        raise InvalidRequestError.of("size", size, "WIDTHxHEIGHT in pixels, such as 1024x1024, or auto")
    return {"width": int(sides[1]), "height": int(sides[2])}
