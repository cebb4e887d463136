"""A pipeline of diffusers, called for several pictures at once: prompts and generators as lists, one of each for every picture."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from omnistage.core.errors import InvalidRequestError, StageFailedError
from omnistage.core.params import DiffusionParams
from omnistage.core.request import OmniRequest
from omnistage.modeling.diffusion import AfterStep, PicturePlan, Wanted
from omnistage.modeling.library_module import in_short
from omnistage.models.diffusers_any.asks import ARGUMENTS, CallShape, planned

_ASKED = (*ARGUMENTS, "prompt")


class WholePipeline:
    """A modeling.diffusion.WholeModel. `fixed` are arguments of every call; `made` is the field of the pipeline's output that holds
    the pictures."""

    def __init__(self, pipeline: Any, shape: CallShape, fixed: Mapping[str, Any], made: str) -> None:
        self._pipeline = pipeline
        self._shape = shape
        self._fixed = dict(fixed)
        self._made = made

    def plan(self, request: OmniRequest, params: DiffusionParams, _inputs: Mapping[str, Any]) -> PicturePlan:
        return planned(request.prompt, params, self._shape)

    def draw(self, wanted: Sequence[Wanted], after_step: AfterStep) -> list[npt.NDArray[np.uint8]]:
        """Raises InvalidRequestError for what the library refuses before the first step."""
        plan = wanted[0].plan
        has_begun = False

        def at_step_end(pipeline: Any, step: int, _timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            nonlocal has_begun
            has_begun = True
            # Solvers that look twice at a step make more of them than were asked for.
            after_step(step + 1, max(step + 1, getattr(pipeline, "num_timesteps", None) or plan.steps))
            return tensors

        sizes = {"height": plan.height, "width": plan.width, "num_inference_steps": plan.steps}
        texts = zip(*([condition.data["text"] for condition in one.plan.conditions] for one in wanted), strict=True)
        arguments = {
            **{name: value for name, value in sizes.items() if name in self._shape.takes},
            **dict(zip(("prompt", "negative_prompt"), map(list, texts), strict=False)),
            **plan.extras,
            **self._fixed,
            "generator": [torch.Generator("cpu").manual_seed(one.seed) for one in wanted],
        }
        try:
            found = self._pipeline(**arguments, callback_on_step_end=at_step_end)
        except ValueError as error:
            field = None if has_begun else _refused(error)
            if field is None:
                raise
            raise InvalidRequestError(f"{field}: {in_short(error)}", field=field) from error
        return [_pixels(picture) for picture in getattr(found, self._made)]


def _pixels(picture: Any) -> npt.NDArray[np.uint8]:
    """[height, width, channels] of 0 to 1, as bytes. Raises StageFailedError for a picture that is none."""
    if not isinstance(picture, np.ndarray):
        raise StageFailedError(f"the pipeline made {type(picture).__name__} in place of a picture")
    if not np.isfinite(picture).all():
        raise StageFailedError("the pipeline made a picture of values that are no numbers")
    return (picture.clip(0.0, 1.0) * 255.0).round().astype(np.uint8)


def _refused(error: ValueError) -> str | None:
    """The argument that the library's own lines mind. None where what they call has failed, or they speak of something else: of how
    the pipeline is made."""
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    is_own = str(frame.f_globals.get("__name__")).startswith("diffusers.")
    return next((name for name in _ASKED if is_own and name in str(error).lower()), None)
