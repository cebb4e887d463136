"""How long the talker stands still between two steps, where its frames leave for the decoder while it speaks and where they leave
at the end.

A gap is what the worker does after the last code of a step and before the first number of the next one: frames gathered, payloads
written, reports sent, mail read, the next step planned (benchmarks.omni_probed). Answers have many more frames than tokens, and
only steps that all requests take part in count.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.omni import answer_all
from benchmarks.omni_probed import NAME, records
from benchmarks.omni_workload import CONCURRENCY, OmniAsk, write_model
from benchmarks.rows import Benchmark, Row
from omnistage import AsyncOmni
from omnistage.models.registry import REGISTRY

PAIRS = 5
ASK = OmniAsk("hello there what is in the picture", text_tokens=4, frames=200)
STREAMS = {"step_gap_us": CONCURRENCY, "step_gap_us_c1": 1}
GOAL = "<= 1.1"


@dataclass(frozen=True, slots=True)
class Gaps:
    """Microseconds: the median, the mean, and the median of those in which the thread had a processor; over `count` gaps."""

    median: float
    mean: float
    cpu: float
    count: int


async def gaps(omni: AsyncOmni, folder: Path, streams: int) -> Gaps:
    held = records(folder)
    held[-1, 0] = 0
    await answer_all(omni, [ASK] * streams, streams)
    found = held[: int(held[-1, 0])]
    wall_s, cpu_s, _ = found[found[:, 2] == streams].T * 1e6
    return Gaps(float(np.median(wall_s)), float(wall_s.mean()), float(np.median(cpu_s)), len(wall_s))


def step_gaps() -> list[Row]:
    REGISTRY[NAME] = "benchmarks.omni_probed:PROBED"
    try:
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            return asyncio.run(_step_gaps(write_model("tiny", Path(one)), write_model("tiny", Path(other))))
    finally:
        del REGISTRY[NAME]


async def _step_gaps(streaming: Path, waiting: Path) -> list[Row]:
    rows = []
    async with (
        AsyncOmni(str(streaming), pipeline=NAME) as on,
        AsyncOmni(str(waiting), pipeline=NAME, async_chunk=False) as off,
    ):
        for name, streams in STREAMS.items():
            await gaps(on, streaming, streams)  # warm
            await gaps(off, waiting, streams)
            pairs = [(await gaps(on, streaming, streams), await gaps(off, waiting, streams)) for _ in range(PAIRS)]
            rows.append(_row(name, streams, pairs))
    return rows


def _row(name: str, streams: int, pairs: list[tuple[Gaps, Gaps]]) -> Row:
    ratios = [on.median / off.median for on, off in pairs]
    means = [statistics.median(side) for side in zip(*((on.mean, off.mean) for on, off in pairs), strict=True)]
    cpu = [statistics.median(side) for side in zip(*((on.cpu, off.cpu) for on, off in pairs), strict=True)]
    workload = (
        f"tiny, {streams} at a time, {ASK.frames} frames: from a step of the talker to its next, frames sent meanwhile against at"
        f" the end; medians of {min(on.count for on, _ in pairs)} gaps or more,"
        f" {min(ratios):.2f}-{max(ratios):.2f} in {PAIRS} pairs;"
        f" means {means[0]:.0f} and {means[1]:.0f}; of the thread's own time {cpu[0]:.0f} and {cpu[1]:.0f}"
    )
    return Row(
        name,
        statistics.median(on.median for on, _ in pairs),
        GOAL,
        "us",
        workload,
        peer=statistics.median(off.median for _, off in pairs),
        peer_version="frames sent at the end",
        ratio=statistics.median(ratios),
    )


BENCHMARKS = (Benchmark(tuple(STREAMS), step_gaps),)
