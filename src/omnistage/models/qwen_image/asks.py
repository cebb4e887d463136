"""What a request may ask of a picture, filled in and checked before anything is read, allocated or loaded. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass

from omnistage.core.errors import InvalidRequestError
from omnistage.core.params import DiffusionParams
from omnistage.modeling.wishes import checked_side
from omnistage.models.qwen_image.settings import PictureSizes

STEPS = 50
"""Denoising steps where nobody says how many."""

_GUIDANCE = 4.0
_NO_WISH = " "
"""The negative prompt of whoever asks for guidance and gives none, as the model's authors have it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """`scale` of classifier-free guidance; `negative` is None where there is no guidance, which takes a scale above 1."""

    height: int
    width: int
    steps: int
    scale: float
    negative: str | None


def checked(params: DiffusionParams, sizes: PictureSizes, default: tuple[int, int] | None = None) -> Ask:
    """`default`: height and width where a request gives none. Raises InvalidRequestError with the field, its value and the nearest
    that is legal."""
    tall, wide = default or (sizes.default, sizes.default)
    scale = _scale(params)
    return Ask(
        height=_side("height", params.height, tall, sizes),
        width=_side("width", params.width, wide, sizes),
        steps=STEPS if params.num_inference_steps is None else params.num_inference_steps,
        scale=scale,
        negative=_negative(params.negative_prompt, scale),
    )


def _scale(params: DiffusionParams) -> float:
    """No weights of these models read a guidance scale, so both names mean the classifier-free one. A negative prompt alone asks
    for guidance too."""
    for scale in (params.true_cfg_scale, params.guidance_scale):
        if scale is not None:
            return scale
    return 1.0 if params.negative_prompt is None else _GUIDANCE


def _negative(prompt: str | None, scale: float) -> str | None:
    if scale <= 1.0:
        return None
    return _NO_WISH if prompt is None else prompt


def _side(name: str, side: int | None, default: int, sizes: PictureSizes) -> int:
    if side is None:
        return default
    if sizes.only is not None and side not in sizes.only:
        accepted = " or ".join(map(str, sizes.only))
        raise InvalidRequestError.of(name, side, f"{accepted}, which is all that this model was trained for")
    return checked_side(name, side, sizes.multiple)
