"""The parts of an autoregressive step by themselves: reading weights, scheduling, sampling. On one thread."""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.checkpoints import checkpoint
from benchmarks.decoding import LONGEST, STEPS, EngineSide, prompts_of
from benchmarks.rows import Benchmark, Row
from omnistage.core.params import SamplingParams
from omnistage.modeling.kernels.build import build
from omnistage.modeling.kernels.chosen import chosen_ops
from omnistage.modeling.kernels.structs import paged_step
from omnistage.modeling.sampling import SampleRow, sample
from omnistage.modeling.step import BlockTable, StepRows
from omnistage.stages.ar.block_manager import BlockManager
from omnistage.stages.ar.plan import SequenceKey, StepPlan
from omnistage.stages.ar.scheduler import Limits, Scheduler
from omnistage.stages.ar.sequence import SequenceState

CPU = torch.device("cpu")
ROWS = 32
VOCAB_SIZE = 32768
BLOCK_SIZE = 32
REPEATS = 5
GEMV = (16384, 4096)


def bandwidth_share() -> list[Row]:
    """Bytes of weights and of keys and values that a decode step reads per second, over a matrix-vector product's."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = checkpoint("55m", Path(scratch), torch.float32)
        shape = json.loads((folder / "config.json").read_text())
        side = EngineSide(folder, "float32")
        prompts = prompts_of(1, shape["vocab_size"], LONGEST["55m"])
        weights_nbytes = (folder / "model.safetensors").stat().st_size - 4 * shape["vocab_size"] * shape["hidden_size"]
        per_token = 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"] * 4
        nbytes = weights_nbytes + per_token * (len(prompts[0]) + STEPS / 2)
        matrix, vector = torch.randn(GEMV), torch.randn(GEMV[1])
        shares, reached = [], []
        side.tokens(prompts, 2)
        for _ in range(REPEATS):
            step_s = (side.tokens(prompts, 1 + STEPS)[1] - side.tokens(prompts, 1)[1]) / STEPS
            gemv_s = _median_s(lambda: torch.mv(matrix, vector))
            reached.append(nbytes / step_s / 1e9)
            shares.append(reached[-1] / (matrix.nbytes / gemv_s / 1e9))
    workload = f"55m float32, one sequence, {nbytes / 1e6:.0f} MB a step at {statistics.median(reached):.1f} GB/s"
    return [Row("ar_bandwidth_share", statistics.median(shares), ">= 0.7", "share", f"{workload}; peer: torch.mv")]


def schedule_ms() -> list[Row]:
    """Plan, step metadata, commit and append of 32 decoding sequences."""
    chance = random.Random(0)
    scheduler = Scheduler(Limits(ROWS, 512, 1024), BlockManager(2000, BLOCK_SIZE))
    for index in range(ROWS):
        tokens = [chance.randrange(500) for _ in range(chance.randint(50, 600))]
        key = SequenceKey(f"request-{index}", 0)
        scheduler.add(SequenceState(key=key, order=(0, index, 0), tokens=tokens, max_len=1024))
    table = BlockTable(ROWS, 1024 // BLOCK_SIZE)

    def step() -> StepPlan:
        plan = scheduler.schedule()
        slots, starts = [row.slot for row in plan.rows], [row.start for row in plan.rows]
        paged_step(StepRows(table, slots, starts, [len(row.tokens) for row in plan.rows], BLOCK_SIZE, CPU), None)
        for row in plan.rows:
            scheduler.commit(row)
            if row.samples:
                scheduler.append(row.key, [7])
        return plan

    while any(len(row.tokens) > 1 for row in step().rows) or scheduler.num_waiting:
        pass
    return [
        Row("ar_schedule_ms_b32", 1e3 * _median_s(step, 200), "<= 0.35", "ms", f"{ROWS} decoding sequences, one step")
    ]


def sample_ms() -> list[Row]:
    """Tokens of 32 rows over a vocabulary of 32768, top-k and top-p, every row with a seed of its own."""
    torch.set_num_threads(1)
    build()
    ops = chosen_ops(CPU)
    params = SamplingParams(temperature=0.8, top_k=50, top_p=0.95)
    rows = [SampleRow(params=params, seed=index, position=3) for index in range(ROWS)]
    logits = 3 * torch.randn(ROWS, VOCAB_SIZE)
    taken_s = _median_s(lambda: sample(logits, rows, ops.draw, ops.uniforms, ops.penalise), 50)
    workload = f"{ROWS} rows of {VOCAB_SIZE}, top_k 50, top_p 0.95; computed with {ops.name}"
    return [Row("ar_sample_ms_b32_v32k", 1e3 * taken_s, "<= 1.0", "ms", workload)]


def _median_s(call: Callable[[], object], times: int = 9) -> float:
    call()
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


BENCHMARKS = (
    Benchmark(("ar_bandwidth_share",), bandwidth_share),
    Benchmark(("ar_schedule_ms_b32",), schedule_ms),
    Benchmark(("ar_sample_ms_b32_v32k",), sample_ms),
)
