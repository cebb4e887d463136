"""What a step cache spares the built-in painter, and what it costs: `python -m benchmarks.painting`, for benchmarks.diffusion.

The same wishes through two engines, without a cache and with one, in batches of mixed step counts. Prints one line of JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

import omnistage
from benchmarks.diffusion_workload import PAINTED_AT_A_TIME, painted
from benchmarks.drawing_engine import EngineSide, Picture, engine_of

FOLDER = Path(omnistage.__file__).parent / "models" / "demo" / "painter"
CACHE = "tea_cache"
"""At its defaults."""
_BACKGROUND = 250
"""Pictures are of one thing on white: a pixel is background where no channel is darker in the picture made without a cache."""
_WINDOW, _K1, _K2 = 7, 0.01, 0.03


@dataclass(frozen=True, slots=True)
class Compared:
    """Rows of blocks over all wishes, without and with the cache; decibels over what is not background and SSIM of each picture."""

    whole_rows: int
    rows: int
    decibels: list[float]
    ssims: list[float]


def compared() -> Compared:
    asked = painted()
    keys: dict[str, Any] = {"max_num_seqs": PAINTED_AT_A_TIME, "max_num_batched_tokens": 1024}
    expected, _ = EngineSide(engine_of(FOLDER, **keys)).pictures(asked)
    engine = engine_of(FOLDER, cache_backend=CACHE, **keys)
    drawn, _ = EngineSide(engine).pictures(asked)
    gauges = engine.gauges()
    rows, spared = int(gauges["block_rows_total"]), int(gauges["block_rows_spared_total"])
    pairs = list(zip(expected, drawn, strict=True))
    return Compared(rows + spared, rows, [decibels(*pair) for pair in pairs], [ssim(*pair) for pair in pairs])


def decibels(whole: Picture, cached: Picture) -> float:
    """Peak signal to noise where `whole` is not background; at most 99."""
    thing = (whole < _BACKGROUND).any(-1)
    error = float(((whole.astype(np.float64) - cached)[thing] ** 2).mean()) if thing.any() else 0.0
    return min(99.0, 10 * float(np.log10(255**2 / max(error, 1e-9))))


def ssim(whole: Picture, cached: Picture) -> float:
    """Structural similarity (Wang et al., 2004) in even windows, mean over places and channels."""
    one, other = (_planes(picture) for picture in (whole, cached))
    means = [F.avg_pool2d(picture, _WINDOW, 1) for picture in (one, other)]
    spread = [
        F.avg_pool2d(left * right, _WINDOW, 1) - mean
        for left, right, mean in (
            (one, one, means[0] ** 2),
            (other, other, means[1] ** 2),
            (one, other, means[0] * means[1]),
        )
    ]
    first, second = (_K1 * 255) ** 2, (_K2 * 255) ** 2
    light = (2 * means[0] * means[1] + first) / (means[0] ** 2 + means[1] ** 2 + first)
    return float((light * (2 * spread[2] + second) / (spread[0] + spread[1] + second)).mean())


def _planes(picture: npt.NDArray[np.uint8]) -> torch.Tensor:
    """[channels, 1, height, width]"""
    return torch.from_numpy(picture.astype(np.float64)).permute(2, 0, 1)[:, None]


def main() -> None:
    torch.set_num_threads(1)
    print(json.dumps(asdict(compared())), flush=True)


if __name__ == "__main__":
    main()
