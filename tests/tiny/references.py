"""What transformers itself makes of a folder: the slow, obvious form that the runtime is compared with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers


def load_reference(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()


def generate_greedily(model: Any, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """Greedy tokens of `generate`, which end of text does not end."""
    ids = torch.tensor([list(prompt)])
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens: list[int] = made[0, len(prompt) :].tolist()
    return tokens


def random_prompts(count: int, vocab_size: int, *, longest: int = 70, seed: int = 0) -> list[list[int]]:
    """Prompts of mixed lengths, the shortest one token long."""
    chance = random.Random(seed)
    lengths = [1 + chance.randrange(longest) for _ in range(count)]
    return [[chance.randrange(5, vocab_size) for _ in range(length)] for length in lengths]
