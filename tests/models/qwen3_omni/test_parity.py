"""Whole answers are those of transformers: the same tokens, the same codes, the same sound, however requests come and are cut."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from msgspec.structs import replace

from omnistage import GenerationParams, Omni, SamplingParams
from omnistage.core.output import OmniRequestOutput
from tests.models.qwen3_omni.cases import CASES, REFERENCE, prepared
from tests.models.qwen3_omni.reference import Spoken, inputs_of, load_reference, speak
from tests.tiny.qwen3_omni import SHAPES, write_qwen3_omni

TEXT_TOKENS, FRAMES = 10, 30
TOLERANCE = 1e-5
GREEDY = [
    SamplingParams(temperature=0.0, max_tokens=TEXT_TOKENS, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=FRAMES, repetition_penalty=1.05),
    GenerationParams(voice="ethan"),
]


@dataclass(frozen=True)
class Known:
    """A checkpoint and what transformers answers to every case."""

    folder: Path
    answers: dict[str, Spoken]


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: f"seed{shape.seed}")
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Known:
    folder = write_qwen3_omni(tmp_path_factory.mktemp("omni"), request.param)
    model = load_reference(folder)
    answers = {}
    for name, prompt in CASES.items():
        inputs = inputs_of(prepared(folder, prompt), **REFERENCE.get(name, {}))
        answers[name] = speak(model, inputs, text_tokens=TEXT_TOKENS, frames=FRAMES)
    return Known(folder, answers)


def expect_equal(output: OmniRequestOutput, spoken: Spoken, name: str) -> None:
    assert output.error is None, f"{name}: {output.error}"
    assert list(output.token_ids) == spoken.token_ids, name
    samples = output.multimodal_output.numpy("audio")
    assert samples.shape == spoken.samples.shape, f"{name}: {len(samples)} samples for {len(spoken.samples)}"
    difference = float(np.abs(samples - spoken.samples).max())
    assert difference <= TOLERANCE, f"{name}: samples differ by {difference}"


def answers(folder: Path, prompts: list[Any], **overrides: Any) -> list[OmniRequestOutput]:
    with Omni(str(folder), **overrides) as omni:
        return omni.generate(prompts, GREEDY, use_tqdm=False)


def test_a_batch_of_mixed_requests(known: Known) -> None:
    """Fault: rows of one request that take another's media, positions or codes; padding that is heard."""
    found = answers(known.folder, list(CASES.values()), inline=True)
    for (name, spoken), output in zip(known.answers.items(), found, strict=True):
        expect_equal(output, spoken, name)


def test_each_request_alone(known: Known) -> None:
    """Fault: an answer that is right in company only."""
    with Omni(str(known.folder), inline=True, stage_0_enable_prefix_caching=False) as omni:
        for name, prompt in CASES.items():
            expect_equal(omni.generate([prompt], GREEDY, use_tqdm=False)[0], known.answers[name], name)


def test_prompts_in_pieces_and_kept_prefixes(known: Known) -> None:
    """Fault: media cut by a chunk's border; a kept prefix whose rows for the talker are not handed on."""
    with Omni(str(known.folder), inline=True, stage_0_max_num_batched_tokens=16) as omni:
        for _ in range(2):
            for name, prompt in CASES.items():
                expect_equal(omni.generate([prompt], GREEDY, use_tqdm=False)[0], known.answers[name], name)


# ---- schedules, processes, replicas: one checkpoint tells --------------------------------------------------------------


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Known:
    """The first checkpoint, and what transformers answers to two cases, one of them with positions of its own."""
    folder = write_qwen3_omni(tmp_path_factory.mktemp("first"), SHAPES[1])
    model = load_reference(folder)
    wanted = {name: prepared(folder, CASES[name]) for name in ("text", "image and audio")}
    return Known(
        folder,
        {
            name: speak(model, inputs_of(prompt), text_tokens=TEXT_TOKENS, frames=FRAMES)
            for name, prompt in wanted.items()
        },
    )


def scheduled(folder: Path, frames: int, *, first: int | None = None, adaptive: bool = False) -> str:
    """A deploy file whose codec frames leave in chunks of `frames`, the first one of `first`."""
    chunk = {"first": first or frames, "later": frames, "adaptive": adaptive}
    path = folder / f"chunks_{first}_{frames}_{adaptive}.yaml"
    path.write_text(yaml.safe_dump({"edges": [{"source": 1, "target": 2, "chunk": chunk}]}))
    return str(path)


def streamed(omni: Omni, prompt: Any, params: list[Any] = GREEDY) -> tuple[list[int], list[np.ndarray[Any, Any]]]:
    """The pieces of a streamed answer: its token ids, and the samples of every part with sound."""
    token_ids: list[int] = []
    pieces: list[np.ndarray[Any, Any]] = []
    for part in omni.generate([prompt], params, stream=True):
        assert part.error is None, part.error
        token_ids += part.token_ids
        if "audio" in part.multimodal_output.tensors:
            pieces.append(part.multimodal_output.numpy("audio"))
    return token_ids, pieces


@pytest.mark.parametrize("frames", [1, 4, 25, 300])
def test_streams_cut_anywhere(first: Known, frames: int) -> None:
    """Fault: samples lost, repeated or changed at the border of a chunk; other bytes when the same chunks are not streamed."""
    deploy = scheduled(first.folder, frames)
    for name, spoken in first.answers.items():
        with Omni(str(first.folder), deploy_config=deploy, inline=True) as omni:
            token_ids, pieces = streamed(omni, CASES[name])
        with Omni(str(first.folder), deploy_config=deploy, inline=True, async_chunk=False) as omni:
            whole = omni.generate([CASES[name]], GREEDY, use_tqdm=False)[0]
        expect_equal(whole, spoken, name)
        assert token_ids == spoken.token_ids
        assert len(pieces) == -(-len(spoken.codes) // frames)
        assert np.concatenate(pieces).tobytes() == whole.multimodal_output.numpy("audio").tobytes()
        edge = whole.metrics["edges"]["talker->code2wav"]
        assert edge["units"] == len(spoken.codes)
        assert [units for units, count in edge["schedule"] for _ in range(count)] == cuts(len(spoken.codes), frames)


def cuts(total: int, frames: int) -> list[int]:
    return [min(frames, total - at) for at in range(0, total, frames)]


def test_three_processes_and_two_talkers(first: Known) -> None:
    """Fault: what is right in one process only; a request whose items go to another replica than the rest."""
    prompts = [CASES[name] for name in first.answers] * 4
    found = answers(first.folder, prompts, stage_1_num_replicas=2)
    for output, (name, spoken) in zip(found, [*first.answers.items()] * 4, strict=True):
        expect_equal(output, spoken, name)


def test_a_talker_that_is_killed_in_the_middle_of_a_batch(first: Known) -> None:
    """Fault: an offline batch that loses answers, or has other ones, when a worker dies."""
    prompts = [CASES[name] for name in first.answers] * 6
    with Omni(str(first.folder)) as omni:
        talker = next(replica.pid for replica in omni.status().replicas if replica.process == "talker")
        assert talker is not None
        killer = threading.Timer(0.15, os.kill, (talker, signal.SIGKILL))
        killer.start()
        found = omni.generate(prompts, GREEDY, use_tqdm=False)
        killer.join()
        restarts = sum(replica.restarts for replica in omni.status().replicas)
    for output, (name, spoken) in zip(found, [*first.answers.items()] * 6, strict=True):
        expect_equal(output, spoken, name)
    assert restarts == 1


# ---- sampled runs ------------------------------------------------------------------------------------------------------


def test_a_seed_fixes_everything(first: Known) -> None:
    """Fault: draws that depend on neighbours, on streaming, or on what ran before."""
    sampled = [
        SamplingParams(temperature=0.8, top_p=0.9, max_tokens=TEXT_TOKENS, ignore_eos=True, seed=7),
        SamplingParams(temperature=0.9, top_k=50, repetition_penalty=1.05, max_tokens=FRAMES, seed=7),
        GenerationParams(voice="chelsie"),
    ]
    prompts = list(CASES.values())
    with Omni(str(first.folder), inline=True) as omni:
        together = omni.generate(prompts, sampled, use_tqdm=False)
        alone = [omni.generate([prompt], sampled, use_tqdm=False)[0] for prompt in prompts]
        other = omni.generate(prompts[:1], [replace(one, seed=8) for one in sampled], use_tqdm=False)[0]
        token_ids, pieces = streamed(omni, prompts[0], sampled)
    for one, another in zip(together, alone, strict=True):
        assert one.token_ids == another.token_ids
        expect_close_sound(one.multimodal_output.numpy("audio"), another.multimodal_output.numpy("audio"))
    assert token_ids == list(alone[0].token_ids)
    expect_close_sound(np.concatenate(pieces), alone[0].multimodal_output.numpy("audio"))
    assert other.token_ids != alone[0].token_ids


def expect_close_sound(one: np.ndarray[Any, Any], another: np.ndarray[Any, Any]) -> None:
    """The same codes make sounds of one length that differ by rounding; other codes differ by far more."""
    assert one.shape == another.shape
    assert float(np.abs(one - another).max(initial=0.0)) <= TOLERANCE
