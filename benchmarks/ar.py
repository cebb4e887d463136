"""Autoregressive decoding against transformers' `generate` and against vLLM, on one thread each (benchmarks.decoding)."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from functools import partial

from benchmarks.decoding import LONGEST, PREFILL, STEPS, Measured
from benchmarks.peers import vllm_process
from benchmarks.rows import Benchmark, Row, Skipped

GOALS: dict[str, dict[str, dict[int, float]]] = {
    "generate": {
        "tiny": {1: 5.0, 8: 2.8, 32: 2.0},
        "55m": {1: 1.4, 8: 1.9, 32: 1.8},
        "smollm2": {1: 1.4, 8: 1.9, 32: 1.8},
    },
    "vllm": {
        "tiny": {1: 5.0, 8: 2.0, 32: 1.3},
        "55m": {1: 1.2, 8: 1.2, 32: 1.2},
    },
    "vllm_compiled": {
        "tiny": {1: 1.0, 8: 1.0, 32: 1.0},
        "55m": {1: 1.0, 8: 1.0, 32: 1.0},
    },
}
"""By peer, model and batch size."""
PREFILL_GOAL = 1.2
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # Without them glibc gives large buffers back after every step, and both sides fault their pages in again.
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**31),
}
"""The same for both sides."""
_TIMEOUT_S = 1800


def beside(peer: str, model: str, dtype: str) -> list[Row] | Skipped:
    if peer.startswith("vllm") and vllm_process.interpreter() is None:
        return Skipped(f"{vllm_process.VARIABLE} names no interpreter that has vllm (docs/speed.md)")
    command = [sys.executable, "-m", "benchmarks.decoding", peer, model, dtype]
    done = subprocess.run(
        command, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_S, check=True
    )
    found = [Measured(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
    return [_row(peer, model, dtype, measured) for measured in found if measured.batch or _has_prefill(peer, model)]


def _row(peer: str, model: str, dtype: str, found: Measured) -> Row:
    assert dtype != "float32" or found.equal == max(1, found.batch), (
        f"only {found.equal} of {found.batch} answers are the peer's"
    )
    what = f"{STEPS} decode steps behind up to {LONGEST[model]}" if found.batch else f"one token behind {PREFILL}"
    span = f"{min(found.ratios):.2f}-{max(found.ratios):.2f} in {len(found.ratios)} pairs"
    workload = f"{model} {dtype}, {what}; {span}; whole answers {found.whole:.2f}; {found.equal} equal; {found.peer}"
    return Row(
        name_of(peer, model, dtype, found.batch),
        found.ours_ms,
        f">= {GOALS[peer][model][found.batch] if found.batch else PREFILL_GOAL}",
        "ms",
        f"{workload}; computed with {found.ours_computes_with}",
        peer=found.peer_ms,
        peer_version=found.peer,
        ratio=statistics.median(found.ratios),
        env=ENVIRONMENT,
    )


def name_of(peer: str, model: str, dtype: str, batch: int) -> str:
    suffix = "_bf16" if dtype == "bfloat16" else ""
    return f"ar_{model}_b{batch}_vs_{peer}{suffix}" if batch else f"ar_prefill_{PREFILL}_vs_{peer}{suffix}"


def _has_prefill(peer: str, model: str) -> bool:
    return (peer, model) == ("generate", "55m")


def _names(peer: str, model: str, dtype: str) -> tuple[str, ...]:
    batches = (*GOALS[peer][model], *([0] if _has_prefill(peer, model) else []))
    return tuple(name_of(peer, model, dtype, batch) for batch in batches)


BENCHMARKS = tuple(
    Benchmark(
        _names(peer, model, dtype),
        partial(beside, peer, model, dtype),
        quick=(model, dtype) == ("tiny", "float32") and peer != "vllm_compiled",
    )
    for peer in GOALS
    for dtype in ("float32", "bfloat16")
    for model in GOALS[peer]
)
