"""What the stages of Qwen3-Omni occupy, and what it costs to hand them the rows of long media.

    omni_stage_rss_STAGE       resident memory of a stage's worker after REQUESTS requests, over what it may have: FACTOR times its
                               own tensors and ALLOWANCE_NBYTES
    omni_handoff_2000_rows     rows of the thinker's accepted layer, from what a step captured to what the talker's prompt is made
                               of, over one memcpy of as many bytes; bfloat16, and float32 with _f32

The hand-off is that of four steps of the thinker, in a process that has the allocator's settings of a worker:
`python -m benchmarks.omni_memory DTYPE`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from benchmarks.ar import ENVIRONMENT
from benchmarks.omni import params_of, prompt_of
from benchmarks.omni_workload import CONCURRENCY, asks, write_model
from benchmarks.rows import Benchmark, Row
from omnistage import Omni
from omnistage.connectors.memory import create_arena
from omnistage.connectors.shm import ShmConnector
from omnistage.core.payload import MultimodalPayload
from omnistage.core.request import OmniRequest, Prompt
from omnistage.modeling.protocols import StageInput
from omnistage.modeling.tensors import TorchSource, dtype_of, to_torch
from omnistage.models.qwen3_omni.bridges import MEDIA, Heard, for_talker, talker_bridge
from omnistage.models.qwen3_omni.handoff import ASSISTANT_ROWS, TalkerPrompt
from omnistage.obs.process import child_figures

REQUESTS = CONCURRENCY
FACTOR, ALLOWANCE_NBYTES = 1.15, 350_000_000
STAGES = ("thinker", "talker", "code2wav")
ROWS, HIDDEN, STEPS = 2000, 2048, 4
HANDOFF_GOAL = "<= 3"
DTYPES = {"omni_handoff_2000_rows": "bfloat16", "omni_handoff_2000_rows_f32": "float32"}
PAIRS = 21
_MIB = 2**20


def stage_memory() -> list[Row]:
    wanted = asks("100m")[:REQUESTS]
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_model("100m", Path(scratch))
        own = _own_nbytes(folder)
        with Omni(str(folder)) as omni:
            outputs = omni.generate(
                [prompt_of(ask.question) for ask in wanted],
                params_of(max(wanted, key=lambda ask: ask.frames)),
                use_tqdm=False,
            )
            assert all(output.error is None for output in outputs)
            held = {
                replica.process: child_figures(replica.pid)["rss_nbytes"]
                for replica in omni.status().replicas
                if replica.pid is not None
            }
    return [_memory_row(stage, held[stage], own[stage]) for stage in STAGES]


def _own_nbytes(folder: Path) -> dict[str, int]:
    """Bytes of the tensors of each stage, as they are stored."""
    own = dict.fromkeys(STAGES, 0)
    with safe_open(str(folder / "model.safetensors"), framework="pt") as weights:
        for name in list(weights.keys()):
            own[name.partition(".")[0]] += weights.get_tensor(name).nbytes
    return own


def _memory_row(stage: str, held: int, own: int) -> Row:
    limit = FACTOR * own + ALLOWANCE_NBYTES
    return Row(
        f"omni_stage_rss_{stage}",
        held / _MIB,
        "<= 1",
        "MiB",
        f"100m, the worker after {REQUESTS} requests at a time; its own tensors are {own / _MIB:.0f} MiB, and it may have"
        f" {FACTOR} times these and {ALLOWANCE_NBYTES / 1e6:.0f} MB",
        peer=limit / _MIB,
        peer_version="the limit",
        ratio=held / limit,
    )


def handoffs() -> list[Row]:
    return [_handoff_row(name, dtype) for name, dtype in DTYPES.items()]


def _handoff_row(name: str, dtype: str) -> Row:
    command = [sys.executable, "-m", "benchmarks.omni_memory", dtype]
    done = subprocess.run(
        command, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, text=True, timeout=120, check=True
    )
    pairs: list[tuple[float, float]] = json.loads(done.stdout)
    handed, copied = np.median(pairs, axis=0)
    return Row(
        name,
        1e6 * float(handed),
        HANDOFF_GOAL,
        "us",
        f"{ROWS} rows of {HIDDEN} {dtype}, captured in {STEPS} steps: select, put, get, bridge; peer: one memcpy; {PAIRS} pairs",
        peer=1e6 * float(copied),
        peer_version="memcpy",
        ratio=float(np.median([ours / theirs for ours, theirs in pairs])),
    )


class Handoff:
    """Both ends of the way from thinker to talker, in one process. `captures`: what STEPS steps leave; the first has what the
    prompt hands on, the last the first token."""

    def __init__(self, dtype: str) -> None:
        self.rows = torch.randn(ROWS, HIDDEN).to(dtype_of(dtype))
        arena = create_arena(256 * _MIB)
        self._thinker, self._talker = ShmConnector("thinker/0", 1, arena), ShmConnector("talker/0", 1)
        self._talker.attach("thinker/0", 1, arena)
        os.close(arena)
        self._request = OmniRequest(request_id="r", prompt=Prompt(text=""), wants=("audio",), stage_params={})
        self.captures = [MultimodalPayload({"hidden_6": TorchSource(part)}) for part in self.rows.chunk(STEPS)]
        self.captures[0] = replace(self.captures[0], metadata={"prompt": _prompt().to_handoff()})
        said = {"index": 0, "token_ids": [1], "finish_reason": None}
        self.captures[-1] = replace(self.captures[-1], metadata={"choices": [said]})

    def hand_over(self) -> list[Any]:
        """Rows of media that the talker's stage is given, in parts: its prompt comes in several inputs, and each holds some."""
        heard: Heard | None = None
        given: list[StageInput] = []
        for seq, capture in enumerate(self.captures):
            item = for_talker(capture, self._request)
            assert item is not None
            ref = self._thinker.try_put(item)
            assert ref is not None
            heard, inputs = talker_bridge(heard, 0, seq, self._talker.get(ref), False)
            self._thinker.release(ref)
            given += inputs
        return [part for one in given if "prompt" in one.data for part in one.data["prompt"].get(MEDIA, ())]

    def close(self) -> None:
        self._talker.close()
        self._thinker.close()


def _prompt() -> TalkerPrompt:
    """All of it is media."""
    places = np.arange(ROWS, dtype=np.int32)
    length = ROWS + ASSISTANT_ROWS
    return TalkerPrompt(places, places, np.tile(np.arange(length, dtype=np.int32), (3, 1)), length)


def measure(dtype: str) -> list[tuple[float, float]]:
    """Seconds of a hand-off, and of a memcpy into memory that is there already, in turns."""
    torch.set_num_threads(1)
    way = Handoff(dtype)
    source = way.rows.view(torch.uint8).numpy()
    target = np.empty_like(source)
    media = torch.cat([to_torch(part) for part in way.hand_over()])
    assert torch.equal(media, way.rows), "other rows arrive"
    pairs = []
    for _ in range(PAIRS):
        begun = time.perf_counter()
        kept = way.hand_over()
        handed_s = time.perf_counter() - begun
        del kept
        begun = time.perf_counter()
        np.copyto(target, source)
        pairs.append((handed_s, time.perf_counter() - begun))
    way.close()
    return pairs


BENCHMARKS = (
    Benchmark(tuple(f"omni_stage_rss_{stage}" for stage in STAGES), stage_memory, quick=False),
    Benchmark(tuple(DTYPES), handoffs),
)

if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
