"""A loop that trains: AdamW, a learning rate that warms up and falls along a cosine, a mean of the weights over the last steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Schedule:
    """`warm` of the `steps` rise to `rate`. `kept`: how much of the mean of the weights a step leaves; 0 keeps the last ones."""

    steps: int
    rate: float
    warm: int = 200
    kept: float = 0.0
    decay: float = 0.01


def train(weights: Iterable[torch.nn.Parameter], loss: Callable[[], torch.Tensor], schedule: Schedule) -> float:
    """Leaves the weights trained; the last loss. `loss` draws a batch of its own every time."""
    trained = list(weights)
    means = [weight.detach().clone() for weight in trained]
    optimizer = torch.optim.AdamW(trained, lr=schedule.rate, betas=(0.9, 0.98), weight_decay=schedule.decay)
    last = math.nan
    for step in range(schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = _rate(schedule, step)
        found = loss()
        optimizer.zero_grad(set_to_none=True)
        found.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        kept = min(schedule.kept, (1 + step) / (10 + step))
        torch._foreach_lerp_(means, [weight.detach() for weight in trained], 1 - kept)
        last = found.item()
        if step % 100 == 0:
            print(f"step {step} of {schedule.steps}: loss {last:.4f}", flush=True)
    with torch.no_grad():
        for weight, mean in zip(trained, means, strict=True):
            weight.copy_(mean)
    return last


def _rate(schedule: Schedule, step: int) -> float:
    warm = min(1.0, (step + 1) / schedule.warm)
    return schedule.rate * warm * max(0.03, 0.5 + 0.5 * math.cos(math.pi * step / schedule.steps))
