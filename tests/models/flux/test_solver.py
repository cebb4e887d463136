"""Steps are those of the library's scheduler, of any schedule that it knows; what it was given stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from omnistage.models.flux.solver import EulerSolver, schedule_of
from tests.tiny.flux import DEV, SCHNELL


@pytest.mark.parametrize(
    "settings", [DEV, SCHNELL, {"shift": 3.0}, DEV | {"use_karras_sigmas": True, "base_shift": 0.7}]
)
@pytest.mark.parametrize("tokens", [4, 256, 6000])
def test_steps_are_those_of_the_scheduler(settings: dict[str, Any], tokens: int) -> None:
    """Fault: a schedule that is shifted by another picture's size, or that remembers the picture before."""
    from diffusers import FlowMatchEulerDiscreteScheduler
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    ours, theirs = FlowMatchEulerDiscreteScheduler(**settings), FlowMatchEulerDiscreteScheduler(**settings)
    schedule_of(ours, 2, 16)
    noise, times = schedule_of(ours, 5, tokens)
    mu = calculate_shift(tokens, base_shift=theirs.config.base_shift)
    theirs.set_timesteps(sigmas=[1.0, 0.8, 0.6, 0.4, 0.2], mu=mu)
    assert noise == pytest.approx(theirs.sigmas.tolist(), abs=1e-6) and len(times) == 5
    solver, latents = EulerSolver(noise), torch.randn(2, 3, 4)
    expected = kept = latents.clone()
    for step, (time, told) in enumerate(zip(times, theirs.timesteps, strict=True)):
        assert time == pytest.approx(float(told) / 1000, abs=1e-6)
        prediction = torch.randn(2, 3, 4)
        latents, before = solver.step(prediction, step, latents), latents
        assert step or torch.equal(before, kept)
        expected = theirs.step(prediction, told, expected, return_dict=False)[0]
        assert torch.allclose(latents, expected, atol=1e-6)


def test_behind_the_last_step_is_no_noise() -> None:
    """Fault: an unfinished picture is shown with the noise of another step."""
    solver = EulerSolver((1.0, 0.25, 0.0))
    latents, prediction = torch.full((1, 1, 2), 3.0), torch.full((1, 1, 2), 4.0)
    assert solver.clean(prediction, 0, latents).tolist() == [[[-1.0, -1.0]]]
    assert torch.equal(solver.clean(prediction, 1, latents), solver.step(prediction, 1, latents))
