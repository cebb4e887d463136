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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.diffusion_workload import SIZES, Size, Wish, wishes, write_model
from benchmarks.drawing_engine import EngineSide, engine_of
from benchmarks.peers.diffusers_pipeline import DiffusersSide

PAIRS = 5
PAIRS_S = 60.0
"""Where pairs take long, as many as fit into so many seconds, but three."""
FEWEST_PAIRS = 3
BATCH = 8


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
