"""transformers' own `generate` over the same folder: a static batch, padded at the left, and the fastest of its caches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

CACHES = ("dynamic", "static")


class GenerateSide:
    """One loaded model. `cache` is one of `CACHES`."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.version = f"transformers {transformers.__version__}"
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True
        ).eval()
        self.cache = CACHES[0]

    @torch.inference_mode()
    def tokens(self, prompts: Sequence[Sequence[int]], count: int) -> tuple[list[list[int]], float]:
        """`count` greedy tokens for each prompt, and the seconds it took."""
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        named: dict[str, Any] = {} if self.cache == "dynamic" else {"cache_implementation": self.cache}
        begun = time.perf_counter()
        made = self._model.generate(
            ids,
            attention_mask=mask,
            min_new_tokens=count,
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            disable_compile=True,
            **named,
        )
        spent_s = time.perf_counter() - begun
        return made[:, longest:].tolist(), spent_s

    def choose_cache(self, prompts: Sequence[Sequence[int]], count: int) -> None:
        """Takes the cache that is faster for such prompts."""
        taken: dict[str, float] = {}
        for self.cache in CACHES:
            self.tokens(prompts, 2)
            taken[self.cache] = min(self.tokens(prompts, count)[1] for _ in range(2))
        self.cache = min(taken, key=lambda name: taken[name])
