"""Pictures: the diffusion engine beside diffusers' loop, beside itself one request at a time, and with a step cache.

    diffusion_16tok|64tok|256tok_vs_diffusers   pictures per second, many at once, over one after another (benchmarks.drawing)
    diffusion_first_step_wait_vs_fifo           how long arrivals wait for their first step, the least ratio of the three sizes, and
    diffusion_whole_vs_fifo_16tok|64tok|256tok  how long for their picture (benchmarks.drawing_line)
    diffusion_cache_evals_at_30db, ...          blocks that a step cache spares the built-in painter, and how near its pictures come
                                                to those without it (benchmarks.painting)

Each runs in a process of its own, on one thread.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from functools import partial
from typing import Any

from benchmarks.ar import ENVIRONMENT
from benchmarks.diffusion_workload import LINE_STEPS, LOAD, PAINTED, PAINTED_STEPS, REQUESTS, SIZES, STEPS, Size
from benchmarks.rows import Benchmark, Row, Skipped

WAIT_GOAL = 4.0
_WAIT = "diffusion_first_step_wait_vs_fifo"
_CACHE = "diffusion_cache_evals_at_30db"
_NEARNESS = tuple(f"diffusion_cache_{name}" for name in ("db_median", "db_p10", "ssim"))
_TIMEOUT_S = 1800


def throughput(size: Size) -> list[Row] | Skipped:
    if (missing := _missing()) is not None:
        return missing
    found = _told("drawing", str(size.tokens))
    ratios, pictures = found["ratios"], found["pictures"]
    spans = f"{min(ratios):.2f}-{max(ratios):.2f} in {len(ratios)} pairs, {found['peer_cpu_s'] / found['ours_cpu_s']:.2f} of CPU"
    return [
        Row(
            _name(size),
            pictures / found["ours_s"],
            f">= {size.goal}",
            "pictures/s",
            f"{pictures} pictures of {size.tokens} tokens, {STEPS} steps, {size.layers} layers of {32 * size.heads}; {spans}; "
            f"the peer in batches of 8 {pictures / found['peer_batched_s']:.3g}; equal to {found['grey']} of 255",
            peer=pictures / found["peer_s"],
            peer_version=found["peer"],
            ratio=statistics.median(ratios),
            env=ENVIRONMENT,
            cpu_s_ours=found["ours_cpu_s"],
            cpu_s_peer=found["peer_cpu_s"],
        )
    ]


def in_line() -> list[Row] | Skipped:
    if (missing := _missing()) is not None:
        return missing
    found = {tokens: _told("drawing_line", str(tokens)) for tokens in SIZES}
    ratios = {tokens: one["fifo_wait_s"] / one["wait_s"] for tokens, one in found.items()}
    worst = min(ratios, key=lambda tokens: ratios[tokens])
    asked = f"{REQUESTS} requests of {'/'.join(map(str, LINE_STEPS))} steps, Poisson at {LOAD} of FIFO's capacity"
    each = ", ".join(f"{ratio:.1f} at {tokens} tokens" for tokens, ratio in ratios.items())
    waits = [found[worst][key] for key in ("wait_s", "fifo_wait_s")]
    rows = [_in_line_row(_WAIT, waits, f">= {WAIT_GOAL:g}", ratios[worst], f"{asked}; {each}")]
    for tokens, one in found.items():
        wholes = [one[key] for key in ("whole_s", "fifo_whole_s")]
        text = f"{asked}; to the picture, {tokens} tokens; FIFO had {one['busy']:.2f} of its capacity"
        rows.append(_in_line_row(_whole(tokens), wholes, f"<= {SIZES[tokens].late}", wholes[0] / wholes[1], text))
    return rows


def _in_line_row(name: str, seconds: list[float], goal: str, ratio: float, text: str) -> Row:
    return Row(name, 1e3 * seconds[0], goal, "ms of CPU", text, peer=1e3 * seconds[1], ratio=ratio, env=ENVIRONMENT)


def cached() -> list[Row]:
    found = _told("painting")
    decibels = statistics.quantiles(found["decibels"], n=10, method="inclusive")
    asked = f"{PAINTED} prompts, 8 at a time, {'/'.join(map(str, PAINTED_STEPS))} steps"
    rows, whole = found["rows"] / PAINTED, found["whole_rows"] / PAINTED
    text = f"{asked}; blocks times rows a request"
    return [
        Row(_CACHE, rows, ">= 1.5", "rows", text, peer=whole, ratio=whole / rows),
        Row(_NEARNESS[0], decibels[4], ">= 30", "dB", f"{asked}; over what is not background, median"),
        Row(_NEARNESS[1], decibels[0], ">= 26", "dB", f"{asked}; the same, 10th percentile"),
        Row(
            _NEARNESS[2],
            statistics.fmean(found["ssims"]),
            ">= 0.95",
            "",
            f"{asked}; mean; least {min(found['ssims']):.3f}",
        ),
    ]


def _told(module: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_S, check=True)
    told: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return told


def _missing() -> Skipped | None:
    if importlib.util.find_spec("diffusers") is None:
        return Skipped("diffusers is not installed (the extra `bench`)")
    return None


def _name(size: Size) -> str:
    return f"diffusion_{size.tokens}tok_vs_diffusers"


def _whole(tokens: int) -> str:
    return f"diffusion_whole_vs_fifo_{tokens}tok"


BENCHMARKS = (
    *(Benchmark((_name(size),), partial(throughput, size), quick=size.tokens == 16) for size in SIZES.values()),
    Benchmark((_WAIT, *map(_whole, SIZES)), in_line, quick=False),
    Benchmark((_CACHE, *_NEARNESS), cached, quick=False),
)
