"""Qwen3-Omni against transformers: how long it takes to answer a set of requests, and how long until the first sound.

    omni_jct_vs_hf_sequential   REQUESTS requests, CONCURRENCY of them at a time here, one after another there
    omni_jct_vs_hf_batched      the same against static batches of CONCURRENCY
    omni_ttfp_chunked_c1, _c4   first sound of a streamed answer: stages that stream to each other against stages that wait

The time is that of the whole set. Answers are greedy and of fixed lengths; token ids and samples must be equal to those of
transformers before anything is timed. Where stages stream, sound is compared with the same answer's where they do not.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from benchmarks.omni_workload import CONCURRENCY, FIRST_SOUND, OmniAsk, asks, write_model
from benchmarks.peers.omni_generate import OmniGenerateSide, Said
from benchmarks.rows import Benchmark, Row
from benchmarks.servers import cpu_of, tree_of
from omnistage import AsyncOmni, GenerationParams, SamplingParams

PAIRS = {"tiny": 2, "100m": 1}
SOUND_PAIRS = 9
GOALS = {"tiny": (">= 8", ">= 1.5"), "100m": (">= 3", ">= 1.2")}
TTFP_GOALS = {1: ">= 12", 4: ">= 8"}
SPEAKER = "ethan"
TOLERANCE = 1e-4
AUDIBLE = 1e-3
_SAMPLES_PER_SECOND = 24_000


@dataclass(slots=True)
class AnswerState:
    """One streamed answer: what came, and when (seconds after it was asked for). `stages_s`: from the first step to the end in each
    stage, all together."""

    token_ids: list[int] = field(default_factory=list)
    pieces: list[np.ndarray[Any, Any]] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)
    first_sound_s: float | None = None
    took_s: float = 0.0
    stages_s: float = 0.0

    @property
    def said(self) -> Said:
        return Said(self.token_ids, np.concatenate(self.pieces) if self.pieces else np.zeros(0, np.float32))

    def underrun_s(self) -> float:
        """How long a player that starts with the first piece stands still."""
        stood, until = 0.0, None
        for at, piece in zip(self.arrived_s, self.pieces, strict=True):
            if until is not None and at > until:
                stood += at - until
            until = max(at, until or at) + len(piece) / _SAMPLES_PER_SECOND
        return stood


def prompt_of(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def params_of(ask: OmniAsk) -> list[SamplingParams | GenerationParams]:
    thinker = SamplingParams(temperature=0.0, max_tokens=ask.text_tokens, ignore_eos=True)
    talker = SamplingParams(temperature=0.0, max_tokens=ask.frames, repetition_penalty=1.05)
    return [thinker, talker, GenerationParams(voice=SPEAKER)]


async def answer(omni: AsyncOmni, ask: OmniAsk) -> AnswerState:
    state, begun = AnswerState(), time.perf_counter()
    async for part in omni.generate(prompt_of(ask.question), params_of(ask)):
        for completion in part.outputs:
            state.token_ids += completion.token_ids
        if "audio" in part.multimodal_output.tensors and not part.finished:
            state.pieces.append(part.multimodal_output.numpy("audio"))
            state.arrived_s.append(time.perf_counter() - begun)
            if state.first_sound_s is None and np.abs(state.pieces[-1]).max(initial=0.0) > AUDIBLE:
                state.first_sound_s = state.arrived_s[-1]
        if part.finished:
            state.stages_s = sum(times["running_s"] for times in part.metrics["stages"].values())
    state.took_s = time.perf_counter() - begun
    return state


async def answer_all(omni: AsyncOmni, wanted: Sequence[OmniAsk], concurrency: int) -> tuple[list[AnswerState], float]:
    """All answers in order, `concurrency` at a time, and the seconds that all of them took."""
    free, begun = asyncio.Semaphore(concurrency), time.perf_counter()

    async def one(ask: OmniAsk) -> AnswerState:
        async with free:
            return await answer(omni, ask)

    found = await asyncio.gather(*map(one, wanted))
    return list(found), time.perf_counter() - begun


def beside_transformers(model: str) -> list[Row]:
    """The rows of the whole set, for one model."""
    wanted = asks(model)
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_model(model, Path(scratch))
        peer = OmniGenerateSide(folder)
        prompts = _prompt_ids(folder, wanted)
        threads = _faster_threads(peer, prompts, wanted)
        return asyncio.run(_beside(model, folder, peer, prompts, wanted, threads))


async def _beside(
    model: str,
    folder: Path,
    peer: OmniGenerateSide,
    prompts: list[list[int]],
    wanted: list[OmniAsk],
    threads: int,
) -> list[Row]:
    async with AsyncOmni(str(folder), stage_0_max_num_seqs=CONCURRENCY, stage_1_max_num_seqs=CONCURRENCY) as omni:
        found, _ = await answer_all(omni, wanted, CONCURRENCY)
        _require_equal([one.said for one in found], peer.one_by_one(prompts, wanted)[0])
        ours: list[float] = []
        alone: list[float] = []
        batched: list[float] = []
        cpu_s = [0.0, 0.0, 0.0]
        for _ in range(PAIRS[model]):
            for index, (times, run) in enumerate(
                (
                    (ours, partial(_ours_s, omni, wanted)),
                    (alone, partial(_peer_s, peer.one_by_one, prompts, wanted)),
                    (batched, partial(_peer_s, peer.batched, prompts, wanted, CONCURRENCY)),
                )
            ):
                before = _cpu_s()
                times.append(await run())
                cpu_s[index] += _cpu_s() - before
    suffix = "" if model == "tiny" else f"_{model}"
    workload = f"{len(wanted)} requests, {CONCURRENCY} at a time; {peer.version} with {threads} threads"
    return [
        Row(
            f"omni_jct_vs_hf_{name}{suffix}",
            statistics.median(ours),
            goal,
            "s",
            workload,
            peer=statistics.median(theirs),
            peer_version=peer.version,
            ratio=statistics.median(their / our for our, their in zip(ours, theirs, strict=True)),
            cpu_s_ours=cpu_s[0] / PAIRS[model],
            cpu_s_peer=peer_cpu_s / PAIRS[model],
        )
        for name, goal, theirs, peer_cpu_s in (
            ("sequential", GOALS[model][0], alone, cpu_s[1]),
            ("batched", GOALS[model][1], batched, cpu_s[2]),
        )
    ]


async def _ours_s(omni: AsyncOmni, wanted: list[OmniAsk]) -> float:
    return (await answer_all(omni, wanted, CONCURRENCY))[1]


async def _peer_s(run: Any, *arguments: Any) -> float:
    spent_s: float = (await asyncio.to_thread(run, *arguments))[1]
    return spent_s


def _cpu_s() -> float:
    """Of this process and of all that it has started."""
    return sum(map(cpu_of, tree_of(os.getpid())))


def _prompt_ids(folder: Path, wanted: Sequence[OmniAsk]) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    frame = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [tokenizer.encode(frame.format(ask.question), add_special_tokens=False).ids for ask in wanted]


def _faster_threads(peer: OmniGenerateSide, prompts: list[list[int]], wanted: list[OmniAsk]) -> int:
    """With which number of threads the peer answers sooner; it goes on with that."""
    taken: dict[int, float] = {}
    for threads in (1, os.cpu_count() or 1):
        torch.set_num_threads(threads)
        peer.batched(prompts[:4], wanted[:4], 4)
        taken[threads] = peer.batched(prompts[:8], wanted[:8], 8)[1]
    best = min(taken, key=lambda threads: taken[threads])
    torch.set_num_threads(best)
    return best


def _require_equal(ours: Sequence[Said], theirs: Sequence[Said]) -> None:
    for index, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        assert our.token_ids == their.token_ids, f"request {index}: other tokens"
        assert our.samples.shape == their.samples.shape, f"request {index}: another length"
        difference = float(np.abs(our.samples - their.samples).max())
        assert difference <= TOLERANCE, f"request {index}: samples differ by {difference}"


def first_sound() -> list[Row]:
    """Stages that stream against stages that wait, with one and four answers at a time."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_model("tiny", Path(scratch))
        return asyncio.run(_first_sound(folder))


async def _first_sound(folder: Path) -> list[Row]:
    ask = OmniAsk("hello there what is in the picture", **FIRST_SOUND)
    rows = []
    async with AsyncOmni(str(folder)) as on, AsyncOmni(str(folder), async_chunk=False) as off:
        for streams in TTFP_GOALS:
            await answer_all(on, [ask] * streams, streams)  # warm
            await answer_all(off, [ask] * streams, streams)
            pairs = []
            for _ in range(SOUND_PAIRS):
                streamed, _ = await answer_all(on, [ask] * streams, streams)
                waited, _ = await answer_all(off, [ask] * streams, streams)
                pairs.append((streamed, waited))
            rows.append(_sound_row(streams, pairs))
    return rows


def _sound_row(streams: int, pairs: list[tuple[list[AnswerState], list[AnswerState]]]) -> Row:
    _require_equal([one.said for one in pairs[0][0]], [one.said for one in pairs[0][1]])
    first = [(_mean_sound_s(on), _mean_sound_s(off)) for on, off in pairs]
    whole = statistics.median(
        statistics.fmean(one.took_s for one in on) / statistics.fmean(one.took_s for one in off) for on, off in pairs
    )
    beside_stages = statistics.median(one.took_s / one.stages_s for _, off in pairs for one in off)
    underrun_s = max(one.underrun_s() for on, _ in pairs for one in on)
    workload = (
        f"{FIRST_SOUND['text_tokens']} tokens and {FIRST_SOUND['frames']} frames, {streams} at a time; whole answers take"
        f" {whole:.2f} of the time, and where stages wait {beside_stages:.2f} of what their stages take one after another;"
        f" a player stands still for {underrun_s:.2f} s at most"
    )
    return Row(
        f"omni_ttfp_chunked_c{streams}",
        1e3 * statistics.median(on for on, _ in first),
        TTFP_GOALS[streams],
        "ms",
        workload,
        peer=1e3 * statistics.median(off for _, off in first),
        ratio=statistics.median(off / on for on, off in first),
    )


def _mean_sound_s(answers: Sequence[AnswerState]) -> float:
    found = [one.first_sound_s for one in answers]
    return statistics.fmean(at for at in found if at is not None)


BENCHMARKS = (
    Benchmark(
        ("omni_jct_vs_hf_sequential", "omni_jct_vs_hf_batched"), partial(beside_transformers, "tiny"), quick=False
    ),
    Benchmark(
        ("omni_jct_vs_hf_sequential_100m", "omni_jct_vs_hf_batched_100m"),
        partial(beside_transformers, "100m"),
        quick=False,
    ),
    Benchmark(("omni_ttfp_chunked_c1", "omni_ttfp_chunked_c4"), first_sound),
)
