"""What the benchmarks of pictures ask for. The numbers are pinned by a test: a workload that changes makes rows that cannot be
compared with earlier ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tiny.qwen_image import write_qwen_image
from tools.painter.data import PICKED

STEPS = 20
REQUESTS = 200
LOAD = 0.8
"""Arrivals (Poisson) where requests wait: how many, and in parts of what FIFO can serve."""
LINE_STEPS = (4, 8, 12, 20)
"""Steps of those requests, each as likely as the others."""
PAINTED, PAINTED_AT_A_TIME = 64, 8
PAINTED_STEPS = (16, 20, 24, 28)
"""Prompts for the built-in painter, and its steps in turn."""

_PROMPTS = ("a cat", "two dogs on a red table", "a photo of the background", "shape and size of objects", "a red cat")


@dataclass(frozen=True, slots=True)
class Size:
    """Pictures of `tokens` tokens, `side` pixels square. A run draws `pictures` with `layers` blocks of `heads` heads of 32;
    `seqs` and `budget` are the stage's max_num_seqs and max_num_batched_tokens. `goal` of images per second over diffusers',
    `late` of the mean time in line over FIFO's."""

    tokens: int
    side: int
    layers: int
    heads: int
    pictures: int
    seqs: int
    budget: int
    goal: float
    late: float


SIZES = {
    size.tokens: size
    for size in (
        Size(tokens=16, side=32, layers=4, heads=4, pictures=16, seqs=16, budget=512, goal=3.0, late=1.0),
        Size(tokens=64, side=64, layers=8, heads=8, pictures=8, seqs=8, budget=512, goal=1.4, late=1.0),
        Size(tokens=256, side=128, layers=8, heads=12, pictures=4, seqs=8, budget=256, goal=0.97, late=1.1),
    )
}
LINE_SHAPE = SIZES[16]
"""Whose transformer draws for those who wait in line, whatever the size: 200 pictures of the larger ones take half an hour."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One picture. `scale` of guidance; 1 is none."""

    prompt: str
    seed: int
    steps: int
    side: int
    scale: float = 1.0


def wishes(size: Size) -> list[Wish]:
    """Of a run of the rows against diffusers."""
    return [Wish(_PROMPTS[seed % len(_PROMPTS)], seed, STEPS, size.side) for seed in range(size.pictures)]


def line(size: Size) -> list[Wish]:
    """REQUESTS wishes of mixed step counts, always the same."""
    chance = random.Random(6)
    return [Wish(chance.choice(_PROMPTS), seed, chance.choice(LINE_STEPS), size.side) for seed in range(REQUESTS)]


def painted() -> list[Wish]:
    """What the built-in painter is asked for, with and without a step cache."""
    return [
        Wish(prompt, seed, PAINTED_STEPS[seed % len(PAINTED_STEPS)], side=64, scale=3.5)
        for seed, prompt in enumerate(PICKED[::4][:PAINTED])
    ]


def arrivals(rate: float, count: int) -> Sequence[float]:
    """Seconds at which requests come, `rate` a second in the mean: always the same draw."""
    chance = random.Random(7)
    times: list[float] = []
    for _ in range(count):
        times.append((times[-1] if times else 0.0) + chance.expovariate(rate))
    return times


def write_model(size: Size, folder: Path) -> Path:
    """A random checkpoint."""
    shape: dict[str, Any] = {"attention_head_dim": 32, "axes_dims_rope": (8, 12, 12)}
    return write_qwen_image(folder, num_layers=size.layers, num_attention_heads=size.heads, **shape)
