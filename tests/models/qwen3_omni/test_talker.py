"""The talker's stage against transformers, and against itself: beside others, late, preempted, by other voices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from omnistage.core.params import SamplingParams
from omnistage.stages.ar.engine import ARStageEngine
from tests.models.qwen3_omni.talkers import (
    GREEDY,
    SAMPLED,
    Asked,
    asked_of,
    begin,
    frames,
    heard_by_reference,
    prompt_of,
    send,
    talker_engine,
)
from tests.tiny.engines import Heard, drain
from tests.tiny.qwen3_omni import SHAPES, SUPPRESSED, OmniShape

TEXTS = (
    "What is it?",
    "Hello! Is anybody there who hears me?",
    "0 1 2 3",
    "The quick brown fox, and then the lazy dog.",
)

Omni = Callable[[OmniShape], Path]
Reference = Callable[[OmniShape], Any]


@pytest.fixture(scope="module")
def engine(omni: Omni, kernels: object) -> ARStageEngine:
    """Every test leaves it empty."""
    return talker_engine(omni(SHAPES[0]))


@pytest.fixture(scope="module")
def several(reference: Reference) -> list[Asked]:
    """Questions of several kinds, to the same model."""
    model = reference(SHAPES[0])
    return [asked_of(model, prompt_of(text)) for text in TEXTS]


def answer(engine: ARStageEngine, asked: Asked, params: SamplingParams, **sent: Any) -> Heard:
    begin(engine, "only", params)
    send(engine, "only", list(asked.items(**sent)))
    heard = drain(engine)["only"]
    assert heard.error is None
    return heard


def expect_empty(engine: ARStageEngine) -> None:
    gauges = engine.gauges()
    assert gauges["kv_blocks_free"] == gauges["kv_blocks_total"]
    assert (gauges["running"], gauges["waiting"]) == (0, 0)
    assert not engine.has_work()


@pytest.mark.parametrize("computed_by", ["kernels", "torch"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.groups}-groups")
def test_codes_are_those_of_transformers(
    omni: Omni,
    reference: Reference,
    shape: OmniShape,
    computed_by: str,
    kernels: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fault: anything of the talker or its code predictor that is computed otherwise."""
    monkeypatch.setenv("OMNISTAGE_KERNELS", "1" if computed_by == "kernels" else "0")
    engine = talker_engine(omni(shape))
    assert engine.computes_with == computed_by
    # Of few frames, or of one code over and over, equality would say little.
    found = (asked_of(reference(shape), prompt_of(text)) for text in TEXTS)
    asked = next(asked for asked in found if len({frame[0] for frame in asked.frames}) > 8)
    heard = answer(engine, asked, GREEDY)
    assert frames(heard) == asked.frames
    assert max(frame[0] for frame in frames(heard)) < shape.codebook


@pytest.mark.parametrize("kinds", [("image",), ("audio",), ("image", "audio", "image")], ids="-".join)
def test_codes_about_media_are_those_of_transformers(
    engine: ARStageEngine, reference: Reference, kinds: tuple[str, ...]
) -> None:
    """Fault: rows of media in the wrong places, or turned as if a picture were a line of text; a part of them lost on the way."""
    asked = asked_of(reference(SHAPES[0]), prompt_of(TEXTS[1], *kinds))
    for media_rows in (7, 100):
        assert frames(answer(engine, asked, GREEDY, media_rows=media_rows)) == asked.frames
    expect_empty(engine)


@pytest.mark.parametrize("kinds", [(), ("image", "audio")], ids="-".join)
def test_chances_are_those_of_transformers(engine: ARStageEngine, reference: Reference, kinds: tuple[str, ...]) -> None:
    """Fault: what greedy codes are too coarse to show: a position of the prompt, a row of it, a token of the text that is said."""
    model, prompt = reference(SHAPES[0]), prompt_of(TEXTS[1], *kinds)
    asked, logits = asked_of(model, prompt), heard_by_reference(model, prompt)["logits"]
    end = model.config.talker_config.codec_eos_token_id
    logits[:, [place for place in range(SHAPES[0].codebook, logits.shape[1]) if place != end]] = float("-inf")
    expected = logits.log_softmax(dim=-1)
    found = answer(engine, asked, replace(GREEDY, logprobs=20)).logprobs()
    assert len(expected) == 12
    for step, row in enumerate(expected):
        tokens, values, _ = zip(*found[step]["top"], strict=True)
        torch.testing.assert_close(torch.tensor(values), row[list(tokens)], rtol=1e-4, atol=1e-4)


def test_a_prompt_in_chunks_beside_others(omni: Omni, reference: Reference, kernels: object) -> None:
    """Fault: positions or rows of a chunk that are those of the prompt's beginning, or of another request."""
    model, engine = reference(SHAPES[0]), talker_engine(omni(SHAPES[0]), max_num_batched_tokens=16)
    kinds = [("image", "audio"), (), ("audio",), ("image", "image")]
    several = [asked_of(model, prompt_of(text, *some)) for text, some in zip(TEXTS, kinds, strict=True)]
    for place, asked in enumerate(several):
        begin(engine, f"r{place}", GREEDY, place)
        send(engine, f"r{place}", list(asked.items()))
    heard = drain(engine)
    assert [frames(heard[f"r{place}"]) for place in range(4)] == [asked.frames for asked in several]


def test_a_model_that_ends_by_itself(omni: Omni, reference: Reference, kernels: object) -> None:
    """Fault: the end is a frame, or the frame before it is lost."""
    found = (asked_of(reference(SHAPES[2]), prompt_of(text), frames=100) for text in TEXTS)
    asked = next(asked for asked in found if 4 < len(asked.frames) < 100)
    heard = answer(talker_engine(omni(SHAPES[2])), asked, replace(GREEDY, max_tokens=100))
    assert (frames(heard), heard.finish_reason) == (asked.frames, "stop")


def test_text_that_comes_late(engine: ARStageEngine, several: list[Asked]) -> None:
    """Fault: a step goes on without the token that it says, or holds back the credit for it."""
    asked = several[1]
    begin(engine, "one", GREEDY)
    heard: list[Any] = []
    items = list(asked.items())
    for seq, item in enumerate(items):
        engine.feed("one", 0, seq, item, last=seq == len(items) - 1)
        made = drain(engine)["one"].outputs
        assert dict(item for output in made for item in output.consumed)[0] == seq
        heard += made
        if seq and seq < len(items) - 1:
            assert frames(Heard(heard)) == asked.frames[:seq]  # token s of the text is said by frame s
    assert frames(Heard(heard)) == asked.frames
    expect_empty(engine)


def test_beside_others(engine: ARStageEngine, several: list[Asked]) -> None:
    """Fault: a row that depends on its neighbours: on their codes, their text, their places in the predictor's cache."""
    for place, asked in enumerate(several * 2):
        begin(engine, f"r{place}", GREEDY, place)
        send(engine, f"r{place}", list(asked.items()))
    heard = drain(engine)
    assert [frames(heard[f"r{place}"]) for place in range(8)] == [asked.frames for asked in several * 2]
    expect_empty(engine)


def test_a_seeded_request_alone_beside_others_and_preempted(
    omni: Omni, engine: ARStageEngine, several: list[Asked]
) -> None:
    """Fault: codes are drawn with the state of a generator, or in another stream after a replay."""
    alone = frames(answer(engine, several[0], SAMPLED))
    assert alone != frames(answer(engine, several[0], replace(SAMPLED, seed=8)))
    for place in range(6):
        begin(engine, f"r{place}", replace(SAMPLED, seed=place), place)
        send(engine, f"r{place}", list(several[place % 4].items()))
    begin(engine, "one", SAMPLED, 9)
    send(engine, "one", list(several[0].items()))
    assert frames(drain(engine)["one"]) == alone
    tight = talker_engine(omni(SHAPES[0]), max_num_seqs=1, max_num_batched_tokens=16)
    begin(tight, "one", SAMPLED, 5)
    send(tight, "one", list(several[0].items()))

    def an_older_one_comes(step: int) -> None:
        if step in (6, 14):
            begin(tight, f"older-{step}", replace(GREEDY, max_tokens=3), step - 10)
            send(tight, f"older-{step}", list(several[1].items()))

    assert frames(drain(tight, an_older_one_comes)["one"]) == alone
    assert tight.gauges()["preemptions"] >= 1


def test_in_bfloat16_a_request_is_the_same_alone_and_beside_others(
    omni: Omni, reference: Reference, several: list[Asked]
) -> None:
    """Fault: an operation that bfloat16 has not, or that rounds by the batch."""
    asked = [*several, asked_of(reference(SHAPES[0]), prompt_of(TEXTS[0], "image"))]
    engine = talker_engine(omni(SHAPES[0]), dtype="bfloat16")
    alone = [frames(answer(engine, one, SAMPLED)) for one in asked]
    for place, one in enumerate(asked):
        begin(engine, f"r{place}", SAMPLED, place)
        send(engine, f"r{place}", list(one.items()))
    heard = drain(engine)
    assert [frames(heard[f"r{place}"]) for place in range(len(asked))] == alone
    assert len(alone[0]) == 24


def test_answers_of_one_token_and_of_none(engine: ARStageEngine, reference: Reference, several: list[Asked]) -> None:
    """Fault: an answer too short for transformers is an error here, too."""
    asked = asked_of(reference(SHAPES[0]), prompt_of(TEXTS[0]), text_tokens=1)
    assert frames(answer(engine, asked, GREEDY)) == asked.frames
    heard = answer(engine, several[0], GREEDY, tokens=0)
    assert (frames(heard), heard.finish_reason) == ([], "stop")
    expect_empty(engine)


def test_a_voice_that_there_is_not(engine: ARStageEngine, several: list[Asked]) -> None:
    """Fault: it is somebody else's voice, or the others' requests fail with it."""
    assert frames(answer(engine, several[0], GREEDY, voice="ETHAN")) == several[0].frames
    begin(engine, "one", GREEDY)
    send(engine, "one", list(several[0].items(voice="nobody")))
    error = drain(engine)["one"].error
    assert error is not None
    assert (error.code, "aiden, chelsie, ethan" in error.message) == ("invalid_request", True)
    expect_empty(engine)


def test_what_is_suppressed_never_comes(engine: ARStageEngine, several: list[Asked]) -> None:
    """Fault: a control code is drawn at a high temperature, and no codebook has it."""
    heard = answer(engine, several[0], SamplingParams(temperature=50.0, seed=3, max_tokens=60))
    assert frames(heard)
    vocab = SHAPES[0].codebook + SUPPRESSED
    assert all(token < vocab - SUPPRESSED for token in heard.tokens()[:-1])
