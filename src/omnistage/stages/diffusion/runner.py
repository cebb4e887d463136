"""What a diffusion stage does with its model: the calls, and what they must keep. Policy is elsewhere.

Pictures come in as values and are changed in one place: `step`, after every forward pass has succeeded. A step that raises has not
happened. `decode` and `preview` may run beside all others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from omnistage.core.errors import InvalidRequestError, StageFailedError
from omnistage.core.params import MAX_SEED, DiffusionParams
from omnistage.core.request import OmniRequest
from omnistage.modeling.diffusion import Condition, Denoising, DiffusionModel, PicturePlan, PreviewingModel, Row
from omnistage.stages.diffusion.caches.base import Memory, StepCache
from omnistage.stages.diffusion.captures import checked
from omnistage.stages.diffusion.plan import BranchKey, PictureKey, StepPlan
from omnistage.stages.diffusion.requests import PictureRun, Stepped


class DiffusionRunner:
    """See the module. `cache` None: every step is computed."""

    def __init__(self, model: DiffusionModel, cache: StepCache | None = None) -> None:
        self._model = model
        self._cache = cache

    @property
    def one_timestep(self) -> bool:
        return self._model.one_timestep

    def gauges(self) -> dict[str, float]:
        """Rows of blocks that a step cache has had computed, and has spared."""
        if self._cache is None:
            return {}
        return {"block_rows_total": self._cache.rows_run, "block_rows_spared_total": self._cache.rows_spared}

    def plan(self, request: OmniRequest, params: DiffusionParams, inputs: Mapping[str, Any]) -> PicturePlan:
        """Raises InvalidRequestError also for partial pictures of a model that shows none."""
        if params.partial_images and not isinstance(self._model, PreviewingModel):
            accepted = "0, as this model shows no unfinished pictures"
            raise InvalidRequestError.of("partial_images", params.partial_images, accepted)
        return self._model.plan(request, params, inputs)

    @torch.inference_mode()
    def encode(self, conditions: Sequence[Condition]) -> list[Any]:
        return self._model.encode(conditions)

    @torch.inference_mode()
    def prepare(self, plan: PicturePlan, branches: tuple[Any, ...], seed: int) -> PictureRun:
        """A picture before its first step; all its chance comes from `seed`."""
        generator = torch.Generator("cpu").manual_seed(seed & MAX_SEED)
        denoising = self._model.prepare(plan, branches, generator)
        return PictureRun(seed & MAX_SEED, plan.guidance, denoising, [None] * len(branches))

    @torch.inference_mode()
    def step(self, plan: StepPlan, pictures: Mapping[PictureKey, PictureRun]) -> list[Stepped | Exception]:
        """Takes one step of each picture of the plan, in its order. Raises what a forward pass raises, and then nothing has
        changed; what guidance or a solver raises concerns its picture alone and stands in its place."""
        predictions: dict[BranchKey, torch.Tensor] = {}
        memories: dict[BranchKey, Memory] = {}
        for branches in plan.passes:
            runs = [pictures[key.picture] for key in branches]
            rows = [Row(run.denoising, key.branch, run.step) for run, key in zip(runs, branches, strict=True)]
            if self._cache is None:
                made = self._model.predict(rows)
            else:
                known = [run.memories[key.branch] for run, key in zip(runs, branches, strict=True)]
                made, remembered = self._cache.predict(rows, known)
                memories.update(zip(branches, remembered, strict=True))
            if len(made) != len(rows):
                raise StageFailedError(f"the model made {len(made)} predictions for {len(rows)} rows")
            predictions.update(zip(branches, made, strict=True))
        return [self._solved(key, pictures[key], predictions, memories) for key in plan.pictures]

    def _solved(
        self,
        key: PictureKey,
        run: PictureRun,
        predictions: Mapping[BranchKey, torch.Tensor],
        memories: Mapping[BranchKey, Memory],
    ) -> Stepped | Exception:
        own = [BranchKey(key, branch) for branch in range(len(run.denoising.branches))]
        before = run.denoising.latents
        try:
            prediction = predictions[own[0]]
            if len(own) > 1:
                prediction = self._model.guide(prediction, predictions[own[1]], run.guidance)
            run.denoising.latents = run.denoising.solver.step(prediction, run.step, before)
        except Exception as error:  # noqa: BLE001 - whatever one picture's solver raises is its request's failure
            return error
        run.memories = [memories.get(branch) for branch in own]
        run.step += 1
        return Stepped(before, prediction)

    @torch.inference_mode()
    def decode(self, pictures: Sequence[Denoising]) -> list[npt.NDArray[np.uint8]]:
        """Raises StageFailedError for latents that are not finite, and for what is no picture."""
        for picture in pictures:
            if not bool(torch.isfinite(picture.latents).all()):
                raise StageFailedError("the picture's latents are not finite")
        return [checked(made) for made in self._model.decode(pictures)]

    @torch.inference_mode()
    def preview(self, picture: Denoising, prediction: torch.Tensor, step: int) -> npt.NDArray[np.uint8]:
        assert isinstance(self._model, PreviewingModel), "partial pictures of other models are refused"
        return checked(self._model.preview(picture, prediction, step))


def shape_of(picture: Denoising) -> Hashable:
    """Pictures of equal shape may share a batch: the shapes and dtypes of the latents and of all tensors in the extras."""
    extras = ((name, *_shapes(picture.extras[name])) for name in sorted(picture.extras))
    return (*_shapes(picture.latents), *(extra for extra in extras if len(extra) > 1))


def _shapes(value: Any) -> Iterator[Hashable]:
    match value:
        case torch.Tensor():
            yield (tuple(value.shape), str(value.dtype))
        case list() | tuple():
            for held in value:
                yield from _shapes(held)
