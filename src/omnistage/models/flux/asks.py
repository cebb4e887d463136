"""What a request may ask of a picture, filled in and checked before anything is read, allocated or loaded. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass

from omnistage.core.errors import InvalidRequestError
from omnistage.core.params import DiffusionParams
from omnistage.modeling.wishes import checked_side
from omnistage.models.flux.settings import FluxSettings

_DEFAULT_LATENTS = 128
"""On a side of a picture, where nobody says how large it is."""

_GUIDANCE = 3.5
_UNGUIDED = (None, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Ask:
    """`guidance`: the scale that the transformer reads, if it reads one. `scale` of classifier-free guidance; `negative` is None
    where there is none, which takes a scale above 1."""

    height: int
    width: int
    steps: int
    guidance: float
    scale: float
    negative: str | None


def checked(params: DiffusionParams, settings: FluxSettings) -> Ask:
    """Raises InvalidRequestError with the field, its value and what is accepted."""
    default = settings.scale * _DEFAULT_LATENTS
    height, width = (
        default if side is None else checked_side(name, side, settings.multiple)
        for name, side in (("height", params.height), ("width", params.width))
    )
    scale = 1.0 if params.true_cfg_scale is None else params.true_cfg_scale
    return Ask(
        height=height,
        width=width,
        steps=settings.steps if params.num_inference_steps is None else params.num_inference_steps,
        guidance=_guidance(params, settings),
        scale=scale,
        negative=_negative(params, scale),
    )


def _guidance(params: DiffusionParams, settings: FluxSettings) -> float:
    found = params.guidance_scale
    if not settings.guided and found not in _UNGUIDED:
        accepted = "0, 1 or none, as this model reads none; true_cfg_scale with a negative_prompt guides it"
        raise InvalidRequestError.of("guidance_scale", found, accepted)
    return _GUIDANCE if found is None else found


def _negative(params: DiffusionParams, scale: float) -> str | None:
    """A negative prompt that nobody would read is refused, unless it was turned off by a scale or is blank."""
    wanted = params.negative_prompt
    if scale > 1.0:
        return wanted or ""
    if params.true_cfg_scale is None and wanted is not None and wanted.strip():
        accepted = "with a true_cfg_scale above 1, which takes twice the time"
        raise InvalidRequestError.of("negative_prompt", wanted, accepted)
    return None
