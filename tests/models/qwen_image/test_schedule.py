"""Noise levels and steps are those of diffusers' scheduler, under every configuration that is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from omnistage.models.qwen_image.schedule import EulerSolver, noise_levels, timesteps
from omnistage.models.qwen_image.settings import schedule_shape
from tests.tiny.qwen_image import SCHEDULE

CONFIGS: tuple[dict[str, Any], ...] = (
    SCHEDULE,
    SCHEDULE | {"shift_terminal": None},
    SCHEDULE | {"time_shift_type": "linear"},
    SCHEDULE | {"base_shift": 0.0, "max_shift": 0.0, "shift_terminal": None},
    {"use_dynamic_shifting": False, "shift": 3.0},
)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("steps", "tokens"), [(2, 16), (7, 4096), (50, 300)])
def test_levels_and_steps(tmp_path: Path, config: dict[str, Any], steps: int, tokens: int) -> None:
    """Fault: the schedule of another shift, or rounded elsewhere, which a picture shows after fifty steps."""
    from diffusers import FlowMatchEulerDiscreteScheduler
    from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift, retrieve_timesteps

    theirs = FlowMatchEulerDiscreteScheduler(**config)
    theirs.save_pretrained(tmp_path / "scheduler")
    shape = schedule_shape(tmp_path)
    levels = noise_levels(shape, steps, tokens)
    names = ("base_image_seq_len", "max_image_seq_len", "base_shift", "max_shift")
    mu = calculate_shift(tokens, *(theirs.config.get(name) for name in names))
    sigmas = torch.linspace(1.0, 1 / steps, steps, dtype=torch.float64).tolist()
    times, _ = retrieve_timesteps(theirs, sigmas=sigmas, mu=mu)
    assert torch.equal(torch.tensor(levels), theirs.sigmas)
    assert torch.equal(torch.tensor(timesteps(shape, levels)), times / 1000)

    solver, latents, expected = EulerSolver(levels), torch.ones(3, 4), torch.ones(3, 4)
    for index, time in enumerate(times):
        prediction = torch.full((3, 4), 0.37 * index)
        latents = solver.step(prediction, index, latents)
        expected = theirs.step(prediction, time, expected, return_dict=False)[0]
        assert torch.allclose(latents, expected, rtol=1e-6, atol=1e-6)


def test_one_step_begins_with_noise_and_ends_without(tmp_path: Path) -> None:
    """Fault: the level before the last step cannot be both 1 and the terminal one; 0 / 0 makes a black picture."""
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "scheduler_config.json").write_text(json.dumps(SCHEDULE))
    assert noise_levels(schedule_shape(tmp_path), 1, 16) == (1.0, 0.0)


def test_a_clean_guess() -> None:
    """Fault: a preview of what the latents are, not of what they become."""
    picture, noise = torch.tensor([2.0]), torch.tensor([-1.0])
    noisy = 0.25 * picture + 0.75 * noise
    assert EulerSolver((0.75, 0.0)).clean(noise - picture, 0, noisy).item() == pytest.approx(2.0)
