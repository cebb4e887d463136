"""The noise of each step, by the library's scheduler, and Euler's way from one to the next (flow matching; Lipman et al., 2023).

Latents at noise s are (1 - s) picture + s noise; the model predicts noise - picture, so a step is one multiplication and one
addition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class EulerSolver:
    """A `modeling.diffusion.Solver`. `noise` of every step and, last, of what it ends with."""

    noise: tuple[float, ...]

    def step(self, prediction: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        change = np.float32(self.noise[index + 1]) - np.float32(self.noise[index])
        return latents + float(change) * prediction

    def clean(self, prediction: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        """What the latents would be without noise, going by the prediction of step `index`."""
        return torch.add(latents, prediction, alpha=-self.noise[index])


def schedule_of(scheduler: Any, steps: int, tokens: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(noise of `steps` steps and of their end, timesteps in [0, 1] as the transformer reads them) of a picture of `tokens`
    tokens. A scheduler that shifts by the picture's size does it by mu, which grows along a line from `base_shift` at
    `base_image_seq_len` tokens to `max_shift` at `max_image_seq_len`. `scheduler` is set anew by every call."""
    told = scheduler.config
    slope = (told.max_shift - told.base_shift) / (told.max_image_seq_len - told.base_image_seq_len)
    mu = tokens * slope + (told.base_shift - slope * told.base_image_seq_len)
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
    return tuple(scheduler.sigmas.tolist()), tuple((scheduler.timesteps / 1000).tolist())
