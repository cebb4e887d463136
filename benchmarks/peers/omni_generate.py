"""transformers' own Qwen3-Omni: one request after another, or in static batches.

In its best form: greedy, `inference_mode`, the threads that are faster, batches of requests of like length. All rows of a batch go
on to the end of the longest, as a static batch does; what a row has too much is cut off.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.omni_workload import OmniAsk

_NO_END = -1


@dataclass(frozen=True, slots=True)
class Said:
    """The answer's token ids, and its samples."""

    token_ids: list[int]
    samples: np.ndarray[Any, Any]


class OmniGenerateSide:
    """One loaded model. `prompts` are token ids."""

    def __init__(self, folder: Path) -> None:
        transformers.logging.set_verbosity_error()  # it warns of every answer without an end
        self.version = f"transformers {transformers.__version__}"
        self._model = transformers.Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder).eval()
        self._pad = self._model.config.tts_pad_token_id

    def one_by_one(self, prompts: Sequence[Sequence[int]], asks: Sequence[OmniAsk]) -> tuple[list[Said], float]:
        """Every answer in order, and the seconds that all of them took."""
        begun = time.perf_counter()
        said = [self._together([prompt], [ask])[0] for prompt, ask in zip(prompts, asks, strict=True)]
        return said, time.perf_counter() - begun

    def batched(self, prompts: Sequence[Sequence[int]], asks: Sequence[OmniAsk], size: int) -> tuple[list[Said], float]:
        """The same in batches of `size`, those of like length together."""
        order = sorted(range(len(asks)), key=lambda index: asks[index].frames)
        said: dict[int, Said] = {}
        begun = time.perf_counter()
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            made = self._together([prompts[index] for index in chosen], [asks[index] for index in chosen])
            said.update(zip(chosen, made, strict=True))
        spent_s = time.perf_counter() - begun
        return [said[index] for index in range(len(asks))], spent_s

    @torch.inference_mode()
    def _together(self, prompts: Sequence[Sequence[int]], asks: Sequence[OmniAsk]) -> list[Said]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[self._pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        frames = max(ask.frames for ask in asks)
        sequences, sounds = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            return_audio=True,
            thinker_max_new_tokens=max(ask.text_tokens for ask in asks) + 1,  # it never speaks the last
            thinker_do_sample=False,
            thinker_eos_token_id=_NO_END,
            talker_do_sample=False,
            talker_max_new_tokens=frames + 1,  # nor decodes it
        )
        per_frame = int(self._model.code2wav.total_upsample)
        lost = frames * per_frame - sounds[0].numel() if len(asks) == 1 else frames * per_frame - len(sounds[0])
        return [
            Said(tokens[longest:][: ask.text_tokens].tolist(), sound.flatten()[: ask.frames * per_frame - lost].numpy())
            for ask, tokens, sound in zip(asks, sequences, sounds, strict=True)
        ]
