"""One engine and one peer over the same folder: `python -m benchmarks.decoding PEER MODEL DTYPE`, for benchmarks.ar.

Prints one line of JSON per batch size. Both sides decode greedily from token ids; the tokens must be equal (in float32) before
anything is timed. A decode step is (time for 1 + STEPS tokens - time for 1 token) / STEPS. Sides take turns; a ratio is of
neighbours.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from benchmarks.checkpoints import checkpoint
from benchmarks.peers.generate import GenerateSide
from benchmarks.peers.vllm_process import vllm_side
from omnistage.config.stage import ARStageConfig
from omnistage.core.params import SamplingParams
from omnistage.core.request import OmniRequest, Prompt
from omnistage.modeling.kernels.build import build
from omnistage.stages.ar.build import build_ar_engine
from omnistage.stages.base import StageRequest
from omnistage.wire.messages import CLIENT

STEPS = 64
PAIRS = 5
FEWEST_PAIRS, PAIRS_S = 3, 120.0
"""Where pairs take long, as many as fit into so many seconds, but three."""
BATCHES = (1, 8, 32)
LONGEST = {"tiny": 600, "55m": 240, "smollm2": 240}
"""Tokens of a prompt. Both sides take minutes over the prompts of the larger models, which are not what is measured here."""
PREFILL = 512


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds are medians; `ratios` are the peer's time over ours, pair by pair, and `whole` the same for whole answers."""

    batch: int
    ours_ms: float
    peer_ms: float
    ratios: list[float]
    whole: float
    equal: int
    peer: str
    ours_computes_with: str


class Side(Protocol):
    def tokens(self, prompts: Sequence[Sequence[int]], count: int) -> tuple[list[list[int]], float]:
        """`count` greedy tokens for each prompt, and the seconds it took."""


class EngineSide:
    """An AR engine as its stage would run it, except that prefixes are not shared: every run computes all of its prompts.
    `full_steps_s`: seconds of those steps of the last run that brought a token to every prompt."""

    def __init__(self, folder: Path, dtype: str) -> None:
        build()
        self._engine = build_ar_engine(
            ARStageConfig(
                stage_id=0,
                model_stage="llm",
                process="main",
                model_path=str(folder),
                loader="omnistage.models.causal_lm.loader:load",
                processor="omnistage.models.causal_lm.processor:load_processor",
                dtype=dtype,
                kv_cache_bytes=2**31,
                block_size=32,
                max_num_seqs=max(BATCHES),
                max_num_batched_tokens=PREFILL,
                max_model_len=1024,
                enable_prefix_caching=False,
            )
        )
        self._runs = 0
        self.computes_with = self._engine.computes_with
        self.full_steps_s: list[float] = []

    def tokens(self, prompts: Sequence[Sequence[int]], count: int) -> tuple[list[list[int]], float]:
        self._runs += 1
        self.full_steps_s = []
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        found: dict[str, list[int]] = {f"{self._runs}-{index}": [] for index in range(len(prompts))}
        begun = time.perf_counter()
        for index, (name, prompt) in enumerate(zip(found, prompts, strict=True)):
            request = OmniRequest(
                request_id=name, prompt=Prompt(token_ids=tuple(prompt)), wants=("text",), stage_params={0: params}
            )
            self._engine.add(StageRequest(request, 0, 0, (0, index), frozenset([CLIENT])))
        while self._engine.has_work():
            step_begun = time.perf_counter()
            outputs = self._engine.step()
            if len(outputs) == len(prompts):
                self.full_steps_s.append(time.perf_counter() - step_begun)
            for output in outputs:
                assert output.error is None, output.error
                if output.capture is not None:
                    found[output.request_id] += output.capture.metadata["choices"][0]["token_ids"]
        return list(found.values()), time.perf_counter() - begun


def prompts_of(batch: int, vocab_size: int, longest: int) -> list[list[int]]:
    """Half of `longest` tokens alone, a twelfth of it to all of it side by side."""
    chance = random.Random(batch)
    lengths = [longest // 2] if batch == 1 else [chance.randint(longest // 12, longest) for _ in range(batch)]
    return [[chance.randrange(3, vocab_size) for _ in range(length)] for length in lengths]


def measure(ours: EngineSide, peer: Side, prompts: Sequence[Sequence[int]], told: str) -> Measured:
    """Equality, then pairs."""
    expected, _ = peer.tokens(prompts, 1 + STEPS)
    found, _ = ours.tokens(prompts, 1 + STEPS)
    steps: list[tuple[float, float]] = []
    whole: list[float] = []
    begun_s = time.monotonic()
    while len(steps) < PAIRS and (len(steps) < FEWEST_PAIRS or time.monotonic() - begun_s < PAIRS_S):
        times = [[side.tokens(prompts, count)[1] for count in (1, 1 + STEPS)] for side in (ours, peer)]
        steps.append((times[0][1] - times[0][0], times[1][1] - times[1][0]))
        whole.append(times[1][1] / times[0][1])
    return Measured(
        len(prompts),
        1e3 * statistics.median(mine for mine, _ in steps) / STEPS,
        1e3 * statistics.median(theirs for _, theirs in steps) / STEPS,
        [theirs / mine for mine, theirs in steps],
        statistics.median(whole),
        sum(a == b for a, b in zip(found, expected, strict=True)),
        told,
        ours.computes_with,
    )


def prefill(ours: EngineSide, peer: Side, vocab_size: int, told: str) -> Measured:
    """One token behind a prompt of `PREFILL`; its `batch` is 0."""
    chance = random.Random(PREFILL)
    prompts = [[chance.randrange(3, vocab_size) for _ in range(PREFILL)]]
    equal = int(ours.tokens(prompts, 1)[0] == peer.tokens(prompts, 1)[0])
    pairs = [(ours.tokens(prompts, 1)[1], peer.tokens(prompts, 1)[1]) for _ in range(PAIRS)]
    return Measured(
        0,
        1e3 * statistics.median(mine for mine, _ in pairs),
        1e3 * statistics.median(theirs for _, theirs in pairs),
        ratios := [theirs / mine for mine, theirs in pairs],
        statistics.median(ratios),
        equal,
        told,
        ours.computes_with,
    )


def beside_generate(ours: EngineSide, folder: Path, dtype: str, vocab_size: int, longest: int) -> Iterator[Measured]:
    """In this process; the peer has the faster of its caches."""
    peer = GenerateSide(folder, getattr(torch, dtype))
    for batch in BATCHES:
        prompts = prompts_of(batch, vocab_size, longest)
        peer.choose_cache(prompts, 17)
        yield measure(ours, peer, prompts, f"{peer.version}, {peer.cache} cache")
    yield prefill(ours, peer, vocab_size, peer.version)


def beside_vllm(
    ours: EngineSide, folder: Path, dtype: str, vocab_size: int, longest: int, *, compiled: bool = False
) -> Iterator[Measured]:
    """In a process of its own, which waits while ours computes."""
    with vllm_side(folder, dtype, compiled=compiled) as peer:
        for batch in BATCHES:
            yield measure(ours, peer, prompts_of(batch, vocab_size, longest), peer.version)


BESIDE: dict[str, Callable[[EngineSide, Path, str, int, int], Iterator[Measured]]] = {
    "generate": beside_generate,
    "vllm": beside_vllm,
    "vllm_compiled": partial(beside_vllm, compiled=True),
}


def main() -> None:
    peer, name, dtype = sys.argv[1:]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = checkpoint(name, Path(scratch), getattr(torch, dtype))
        vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
        for found in BESIDE[peer](EngineSide(folder, dtype), folder, dtype, vocab_size, LONGEST[name]):
            print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()
