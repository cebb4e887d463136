"""What a request may ask of a pipeline that is called as a whole, filled in and checked before it is called. Knows no torch and no
diffusers: what the pipeline takes is told as a value.

A plan's `conditions` hold the texts (`text`), its `extras` the other arguments of the call by name. Its `tokens` are squares of
`multiple` pixels on a side.
"""

from __future__ import annotations

from dataclasses import dataclass

from omnistage.core.errors import InvalidRequestError
from omnistage.core.params import DiffusionParams
from omnistage.core.request import Prompt
from omnistage.modeling.diffusion import Condition, PicturePlan
from omnistage.modeling.wishes import checked_side, wish_of

ARGUMENTS = ("height", "width", "num_inference_steps", "guidance_scale", "true_cfg_scale", "negative_prompt")
"""Of a call, which requests may give."""
MOST_CHARS = 20_000
"""Of a text: tens of times what pipelines read of it. They cut it after they have tokenised it as a whole, within a step, and
nobody else is heard meanwhile: a megabyte takes half a minute."""


@dataclass(frozen=True, slots=True)
class CallShape:
    """What a pipeline is called with. `name`: its class. `takes`: those of ARGUMENTS that it has. `steps`, `height`, `width`: where
    a request gives none; a side None: it has to. `multiple`: both sides are multiples of so many pixels. `most`: of them on a
    side, where the network knows no place beyond."""

    name: str
    takes: frozenset[str]
    steps: int
    height: int | None
    width: int | None
    multiple: int
    most: int | None = None


def planned(prompt: Prompt, params: DiffusionParams, shape: CallShape) -> PicturePlan:
    """Raises InvalidRequestError with the field, its value and what is accepted."""
    if params.partial_images:
        raise InvalidRequestError.of(
            "partial_images", params.partial_images, _none(shape, "shows no unfinished pictures")
        )
    for name in ARGUMENTS:
        value = getattr(params, name)
        if value is not None and name not in shape.takes:
            raise InvalidRequestError.of(name, value, _none(shape, f"takes no {name}"))
    height, width = _side("height", params.height, shape), _side("width", params.width, shape)
    wish = wish_of(prompt)
    texts = [_bounded(wish.field, wish.text)]
    if params.negative_prompt is not None:
        texts.append(_bounded("negative_prompt", params.negative_prompt))
    scales = {"guidance_scale": params.guidance_scale, "true_cfg_scale": params.true_cfg_scale}
    return PicturePlan(
        height=height,
        width=width,
        steps=shape.steps if params.num_inference_steps is None else params.num_inference_steps,
        conditions=tuple(Condition(text, {"text": text}, 0) for text in texts),
        tokens=(height // shape.multiple) * (width // shape.multiple),
        extras={name: scale for name, scale in scales.items() if scale is not None},
    )


def _none(shape: CallShape, why: str) -> str:
    return f"none, as {shape.name} {why}"


def _bounded(field: str, text: str) -> str:
    if len(text) > MOST_CHARS:
        raise InvalidRequestError.of(field, f"{text[:20]}... of {len(text)} characters", f"at most {MOST_CHARS}")
    return text


def _side(name: str, asked: int | None, shape: CallShape) -> int:
    side = asked or {"height": shape.height, "width": shape.width}[name]
    if side is None:
        raise InvalidRequestError.of(name, None, f"a number of pixels, as {shape.name} has no size of its own")
    if shape.most is not None and side > shape.most:
        raise InvalidRequestError.of(name, side, f"at most {shape.most}, as {shape.name} knows no places beyond")
    return checked_side(name, side, shape.multiple)
