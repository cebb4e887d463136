"""The noise of each step, and Euler's way from one to the next (flow matching; Lipman et al., 2023, Esser et al., 2024).

Latents at noise s are (1 - s) picture + s noise; the model predicts noise - picture, so a step is one multiplication and one
addition. All numbers are rounded to float32 where the published scheduler rounds them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from omnistage.models.qwen_image.settings import ScheduleShape


@dataclass(frozen=True, slots=True)
class EulerSolver:
    """A `modeling.diffusion.Solver`. `noise` of every step and, last, of what it ends with."""

    noise: tuple[float, ...]

    def step(self, prediction: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        change = np.float32(self.noise[index + 1]) - np.float32(self.noise[index])
        return torch.add(latents, prediction, alpha=float(change))

    def clean(self, prediction: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        """What the latents would be without noise, going by the prediction of step `index`."""
        return torch.add(latents, prediction, alpha=-self.noise[index])


@dataclass(frozen=True, slots=True)
class MaskedSolver(EulerSolver):
    """Draws where `drawn` [tokens, channels] is true; elsewhere the picture is `original`, at the noise of each step. `first` is
    the noise that the latents were."""

    original: torch.Tensor
    first: torch.Tensor
    drawn: torch.Tensor

    def step(self, prediction: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        stepped = EulerSolver.step(self, prediction, index, latents)
        level = self.noise[index + 1]
        return torch.where(self.drawn, stepped, level * self.first + (1.0 - level) * self.original)


def noise_levels(shape: ScheduleShape, steps: int, tokens: int) -> tuple[float, ...]:
    """`steps` levels from 1 down, and 0, for pictures of `tokens` tokens."""
    levels = np.linspace(1.0, 1 / steps, steps).astype(np.float32)
    if shape.is_dynamic:
        levels = _shifted(shape, levels, tokens)
    else:
        levels = (shape.shift * levels / (1 + (shape.shift - 1) * levels)).astype(np.float32)
    if shape.terminal is not None and steps > 1:  # of one step that level is the first, which is all noise
        clean = 1 - levels
        levels = 1 - clean / (clean[-1] / (1 - shape.terminal))
    return (*map(float, levels.astype(np.float32)), 0.0)


def timesteps(shape: ScheduleShape, levels: tuple[float, ...]) -> tuple[float, ...]:
    """In [0, 1], as the model reads them: by way of the training's steps, which rounds."""
    steps = np.array(levels[:-1], np.float32) * np.float32(shape.train_steps)
    return tuple(map(float, steps / np.float32(1000)))


def _shifted(shape: ScheduleShape, levels: np.ndarray, tokens: int) -> np.ndarray:
    slope = (shape.most_shift - shape.base_shift) / (shape.most_tokens - shape.base_tokens)
    mu = tokens * slope + (shape.base_shift - slope * shape.base_tokens)
    strength = math.exp(mu) if shape.is_exponential else mu
    shifted: np.ndarray = strength / (strength + (1 / levels - 1))
    return shifted.astype(np.float32)
