"""Qwen3-Omni with a talker that writes down how long it stands still between two steps, for benchmarks.omni_gap.

    ... complete: the last code of a frame |--gap--| embed_frames: the first number of the next step ...

What it writes lies in a file beside the weights, mapped by the talker's worker and by whoever reads it: nothing is sent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omnistage.config.stage import ARStageConfig
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.sampling import SampleRow
from omnistage.models.qwen3_omni.pipeline import PIPELINE, TALKER
from omnistage.models.qwen3_omni.talker import Talker
from omnistage.models.qwen3_omni.talker_loader import load

NAME = "qwen3_omni_probed"
PROBED = replace(
    PIPELINE,
    model_type=NAME,
    stages=tuple(
        replace(stage, loader="benchmarks.omni_probed:load_probed") if stage.stage_id == TALKER else stage
        for stage in PIPELINE.stages
    ),
)
RECORDS = 2**15
"""Of one pass; later gaps are not written down."""


def records(folder: Path) -> np.ndarray[Any, Any]:
    """[RECORDS + 1, 3] float64, in the file: a gap's seconds, those in which its thread had a processor, and the rows of the step
    before it. The last row begins with how many there are; whoever reads may set it back to 0."""
    path = folder / "gaps"
    mode = "r+" if path.exists() else "w+"
    return np.memmap(path, np.float64, mode, shape=(RECORDS + 1, 3))  # type: ignore[call-overload,no-any-return]


class ProbedTalker(Talker):
    """The talker itself, with two looks at the clock in a step."""

    def __init__(self, talker: Talker, folder: Path) -> None:
        vars(self).update(vars(talker))
        self._records = records(folder)
        self._ended: tuple[float, float, int] | None = None

    def embed_frames(self, frames: Sequence[Sequence[int]], sides: Sequence[int], ops: TorchOps) -> torch.Tensor:
        count = int(self._records[-1, 0])
        if self._ended is not None and count < RECORDS:
            wall_s, cpu_s, rows = self._ended
            self._records[count] = time.perf_counter() - wall_s, time.thread_time() - cpu_s, rows
            self._records[-1, 0] = count + 1
        self._ended = None
        return super().embed_frames(frames, sides, ops)

    def complete(
        self, hidden: torch.Tensor, tokens: Sequence[int], rows: Sequence[SampleRow], ops: TorchOps
    ) -> list[tuple[int, ...] | None]:
        found = super().complete(hidden, tokens, rows, ops)
        self._ended = time.perf_counter(), time.thread_time(), len(rows)
        return found

    def embed_prompt(self, data: Mapping[str, Any], ops: TorchOps) -> torch.Tensor:
        self._ended = None  # a request that begins is no emission
        return super().embed_prompt(data, ops)


def load_probed(config: ARStageConfig) -> ProbedTalker:
    return ProbedTalker(load(config), Path(config.model_path))
