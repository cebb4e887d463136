"""What the runner keeps of the model's calls: shapes that batch, results that are checked, steps that have not happened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from omnistage.core.errors import InvalidRequestError, StageFailedError
from omnistage.core.params import DiffusionParams
from omnistage.modeling.diffusion import Denoising
from omnistage.stages.diffusion.plan import BranchKey, PictureKey, StepPlan
from omnistage.stages.diffusion.requests import PictureRun
from omnistage.stages.diffusion.runner import DiffusionRunner, shape_of
from tests.drawing.painter import FakePainter
from tests.fakes import request_of


def picture(latents: torch.Tensor, **extras: Any) -> Denoising:
    solver: Any = None
    return Denoising(latents, (), solver, (torch.zeros(3),), extras)


def test_shapes_are_derived_from_all_tensors_but_the_conditions() -> None:
    """Fault: pictures batch whose reference pictures differ in size; those that could do not, for a number's sake."""
    shape = shape_of(picture(torch.zeros(2, 3), mask=[torch.zeros(4)], strength=0.3))
    assert shape == shape_of(picture(torch.ones(2, 3), strength=0.7, mask=[torch.ones(4)]))
    others = [
        picture(torch.zeros(3, 2), mask=[torch.zeros(4)]),
        picture(torch.zeros(2, 3, dtype=torch.float16), mask=[torch.zeros(4)]),
        picture(torch.zeros(2, 3), mask=[torch.zeros(5)]),
        picture(torch.zeros(2, 3), mask=(torch.zeros(4), torch.zeros(4))),
        picture(torch.zeros(2, 3), frame=[torch.zeros(4)]),
        picture(torch.zeros(2, 3)),
    ]
    assert len({shape, *map(shape_of, others)}) == len(others) + 1


def stepped(model: FakePainter) -> tuple[PictureRun, Any]:
    """One step of one guided picture."""
    runner = DiffusionRunner(model)
    params = DiffusionParams(true_cfg_scale=2.0, negative_prompt="rain")
    plan = runner.plan(request_of(), params, {"text": "a cat"})
    run = runner.prepare(plan, tuple(runner.encode(plan.conditions)), 5)
    key = PictureKey("r", 0)
    branches = (BranchKey(key, 0), BranchKey(key, 1))
    return run, runner.step(StepPlan((key,), (branches,)), {key: run})[0]


def test_a_step_says_what_it_was_made_from() -> None:
    """Fault: a preview of the latents behind the step, with the prediction before it."""
    model = FakePainter()
    run, done = stepped(model)
    first, _ = stepped(FakePainter())
    assert torch.equal(run.denoising.latents, first.denoising.latents)
    assert not torch.equal(done.latents, run.denoising.latents)
    assert run.step == 1


def test_too_few_predictions_are_nobodys() -> None:
    """Fault: a picture gets the prediction of its neighbour."""
    model = FakePainter()
    model.close = lambda flow: [flow.hidden[0]]  # type: ignore[method-assign]
    with pytest.raises(StageFailedError, match="1 predictions for 2 rows"):
        stepped(model)


@pytest.mark.parametrize("made", [np.zeros((2, 2), np.uint8), np.zeros((2, 2, 3), np.float32)])
def test_what_is_no_picture_does_not_leave(made: np.ndarray[Any, Any]) -> None:
    """Fault: floats go out as pixels."""
    model: Any = FakePainter()
    model.decode = lambda pictures: [made]
    with pytest.raises(StageFailedError, match="in place of a uint8 picture"):
        DiffusionRunner(model).decode([picture(torch.zeros(1))])


def test_latents_that_are_no_numbers_are_not_decoded() -> None:
    """Fault: a picture of noise is sold as one."""
    with pytest.raises(StageFailedError, match="not finite"):
        DiffusionRunner(FakePainter()).decode([picture(torch.tensor([float("nan")]))])


def test_partial_pictures_of_a_model_that_shows_none_are_refused() -> None:
    """Fault: they are accepted, and none comes."""

    class Plain:
        one_timestep = False

    model: Any = Plain()
    with pytest.raises(InvalidRequestError, match="partial_images: 2 is not accepted; accepted: 0"):
        DiffusionRunner(model).plan(request_of(), DiffusionParams(partial_images=2), {})
