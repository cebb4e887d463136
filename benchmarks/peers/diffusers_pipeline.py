"""diffusers' own pipeline over the same folder, one picture at a time or in batches of one size."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import diffusers
import numpy as np
import numpy.typing as npt
import torch

from benchmarks.diffusion_workload import Wish


class DiffusersSide:
    """One loaded QwenImagePipeline."""

    def __init__(self, folder: Path) -> None:
        self.version = f"diffusers {diffusers.__version__}"
        self._pipeline = diffusers.QwenImagePipeline.from_pretrained(folder)
        self._pipeline.set_progress_bar_config(disable=True)

    @torch.inference_mode()
    def pictures(self, wishes: Sequence[Wish], batch: int = 1) -> tuple[list[npt.NDArray[np.float32]], float]:
        """[height, width, 3] in [0, 1] for each wish, `batch` of them in a call, and the seconds it took."""
        made: list[npt.NDArray[np.float32]] = []
        begun = time.perf_counter()
        for start in range(0, len(wishes), batch):
            part = wishes[start : start + batch]
            found = self._pipeline(
                prompt=[wish.prompt for wish in part],
                height=part[0].side,
                width=part[0].side,
                num_inference_steps=part[0].steps,
                true_cfg_scale=1.0,
                generator=[torch.Generator().manual_seed(wish.seed) for wish in part],
                output_type="np",
            )
            made += list(found.images)
        return made, time.perf_counter() - begun
