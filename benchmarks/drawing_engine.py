"""The diffusion engine of a folder, without a server around it: what the benchmarks of pictures measure.

Imports nothing of what they compare it with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.diffusion_workload import Wish
from omnistage.config.stage import DiffusionStageConfig
from omnistage.core.params import DiffusionParams
from omnistage.core.request import OmniRequest, Prompt
from omnistage.models.qwen_image.loader import load
from omnistage.models.qwen_image.processor import load_processor
from omnistage.stages.base import StageRequest
from omnistage.stages.diffusion.caches.table import step_cache
from omnistage.stages.diffusion.engine import DiffusionEngine
from omnistage.stages.diffusion.runner import DiffusionRunner
from omnistage.wire.messages import CLIENT

Picture = npt.NDArray[np.uint8]


def engine_of(folder: Path, *, clock: Callable[[], float] = time.monotonic, **keys: Any) -> DiffusionEngine:
    """A diffusion engine as its stage would run it, except that no prompt is kept: every run encodes all of its own. `keys` of the
    stage."""
    config = DiffusionStageConfig(
        stage_id=0,
        model_stage="painter",
        process="main",
        model_path=str(folder),
        loader="",
        condition_cache_bytes=0,
        **keys,
    )
    model = load(config)
    runner = DiffusionRunner(model, step_cache(config, model))
    return DiffusionEngine(config, runner, None, load_processor(config), clock=clock)


def request_of(name: str, wish: Wish, place: int) -> StageRequest:
    params = DiffusionParams(
        height=wish.side,
        width=wish.side,
        num_inference_steps=wish.steps,
        true_cfg_scale=wish.scale,
        seed=wish.seed,
    )
    prompt = Prompt(text=wish.prompt)
    request = OmniRequest(request_id=name, prompt=prompt, wants=("image",), stage_params={0: params})
    return StageRequest(request, 0, 0, (0, place), frozenset([CLIENT]))


class EngineSide:
    """All wishes at once."""

    def __init__(self, engine: DiffusionEngine) -> None:
        self._engine = engine
        self._runs = 0

    def pictures(self, asked: Sequence[Wish]) -> tuple[list[Picture], float]:
        """[height, width, 3] for each wish, and the seconds it took."""
        self._runs += 1
        found: dict[str, Picture] = {}
        names = [f"{self._runs}-{place}" for place in range(len(asked))]
        begun = time.perf_counter()
        for place, (name, wish) in enumerate(zip(names, asked, strict=True)):
            self._engine.add(request_of(name, wish, place))
        while self._engine.has_work():
            for output in self._engine.step():
                assert output.error is None, output.error
                if output.capture is not None:
                    found[output.request_id] = output.capture.numpy("image")
        return [found[name] for name in names], time.perf_counter() - begun
