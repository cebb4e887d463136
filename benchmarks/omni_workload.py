"""What the benchmarks of Qwen3-Omni ask for. The numbers are pinned by a test: a workload that changes makes rows that cannot be
compared with earlier ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.tiny.qwen3_omni import OmniShape, write_qwen3_omni

REQUESTS = 32
CONCURRENCY = 16
PROMPT_WORDS = (4, 40)
"""Fewest and most words of a prompt."""
TEXT_TOKENS = {"tiny": (16, 64), "100m": (8, 24)}
FRAMES = {"tiny": (40, 160), "100m": (16, 48)}
"""Fewest and most tokens and codec frames of an answer."""
FIRST_SOUND = {"text_tokens": 64, "frames": 200}
"""The answer whose first sound is waited for."""

SHAPES = {
    "tiny": OmniShape(),
    "100m": OmniShape(
        groups=16,
        layers=8,
        talker_layers=4,
        accept=6,
        hidden=512,
        heads=8,
        codebook=128,
        experts=8,
        experts_per_token=4,
        expert_size=512,
        talker_expert_size=384,
        predictor_size=512,
        predictor_head_dim=64,
        codec_hidden=256,
        codec_layers=4,
        decoder_dim=448,
    ),
}
"""100m: a thinker of 57 million parameters of which half are active, a talker of 26, a predictor of 5, a decoder of 10."""

_WORDS = (
    "hello",
    "there",
    "what",
    "is",
    "in",
    "the",
    "picture",
    "and",
    "how",
    "does",
    "it",
    "sound",
    "over",
    "a",
    "lazy",
    "dog",
)


@dataclass(frozen=True, slots=True)
class OmniAsk:
    """One request: its question, and how long its answer is."""

    question: str
    text_tokens: int
    frames: int


def asks(model: str) -> list[OmniAsk]:
    """REQUESTS requests of mixed lengths, always the same."""
    chance = random.Random(5)
    return [
        OmniAsk(
            " ".join(chance.choices(_WORDS, k=chance.randint(*PROMPT_WORDS))),
            chance.randint(*TEXT_TOKENS[model]),
            chance.randint(*FRAMES[model]),
        )
        for _ in range(REQUESTS)
    ]


def write_model(model: str, folder: Path) -> Path:
    """A random checkpoint whose answers have the length that is asked for: the talker never draws its end."""
    write_qwen3_omni(folder, SHAPES[model])
    path, end = folder / "model.safetensors", SHAPES[model].codebook + 102
    weights = load_file(path)
    head = weights["talker.codec_head.weight"]
    head[end] = torch.zeros(head.shape[1])  # its logit is 0, which is never the greatest of so many
    save_file(weights, path, metadata={"format": "pt"})
    return folder
