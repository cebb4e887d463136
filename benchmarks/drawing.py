"""One engine and diffusers' pipeline over the same folder: `python -m benchmarks.drawing TOKENS`, for benchmarks.diffusion.

Prints one line of JSON. Both sides draw the same wishes, ours all at once, the peer one after another, one thread each and on one
processor: ours decodes in a thread of its own, which is not to be a second one's work. Pictures must be equal, but for one grey
level, before anything is timed. Sides take turns; a ratio is of neighbours.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.diffusion_workload import SIZES, Size, Wish, wishes, write_model
from benchmarks.peers.diffusers_pipeline import DiffusersSide
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

PAIRS = 5
PAIRS_S = 60.0
"""Where pairs take long, as many as fit into so many seconds, but three."""
FEWEST_PAIRS = 3
BATCH = 8

Picture = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of a run of `pictures` pictures are medians, `peer_batched_s` is one run. `ratios` are the peer's time over ours,
    pair by pair. `grey`: the largest difference of a pixel, of 255."""

    pictures: int
    ours_s: float
    peer_s: float
    peer_batched_s: float
    ours_cpu_s: float
    peer_cpu_s: float
    ratios: list[float]
    grey: int
    peer: str


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


def measure(ours: EngineSide, peer: DiffusersSide, asked: Sequence[Wish]) -> Measured:
    """Equality, then pairs."""
    expected, _ = peer.pictures(asked)
    drawn, _ = ours.pictures(asked)
    grey = max(int(np.abs(np.rint(a * 255) - b).max()) for a, b in zip(expected, drawn, strict=True))
    assert grey <= 1, f"a pixel is {grey} grey levels from the peer's"
    pairs: list[tuple[float, float]] = []
    cpu: list[tuple[float, float]] = []
    begun_s = time.monotonic()
    while len(pairs) < PAIRS and (len(pairs) < FEWEST_PAIRS or time.monotonic() - begun_s < PAIRS_S):
        at = [time.process_time()]
        pair: list[float] = []
        for side in (ours, peer):
            pair.append(side.pictures(asked)[1])
            at.append(time.process_time())
        pairs.append((pair[0], pair[1]))
        cpu.append((at[1] - at[0], at[2] - at[1]))
    return Measured(
        len(asked),
        statistics.median(mine for mine, _ in pairs),
        statistics.median(theirs for _, theirs in pairs),
        peer.pictures(asked, BATCH)[1],
        statistics.median(mine for mine, _ in cpu),
        statistics.median(theirs for _, theirs in cpu),
        [theirs / mine for mine, theirs in pairs],
        grey,
        peer.version,
    )


def measured(size: Size) -> Measured:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_model(size, Path(scratch))
        engine = engine_of(folder, max_num_seqs=size.seqs, max_num_batched_tokens=size.budget)
        return measure(EngineSide(engine), DiffusersSide(folder), wishes(size))


def main() -> None:
    torch.set_num_threads(1)
    print(json.dumps(asdict(measured(SIZES[int(sys.argv[1])]))), flush=True)


if __name__ == "__main__":
    main()
