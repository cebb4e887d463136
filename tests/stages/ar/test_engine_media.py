"""Prompts with media in the engine: when they are encoded, who fails with them, and what other stages are told of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnistage.core.errors import StageFailedError
from omnistage.core.request import OmniRequest, Prompt
from omnistage.modeling.protocols import EncodedMedia, MediaInput, ProcessedPrompt
from omnistage.models.causal_lm.loader import load
from omnistage.stages.ar.build import ar_engine
from omnistage.stages.ar.engine import ARStageEngine
from omnistage.wire.messages import CLIENT
from tests.stages.ar.prompts import LONG, PROMPTS, expect_empty
from tests.tiny.checkpoints import train_tokenizer
from tests.tiny.engines import answer, drain, greedy, stage_config, stage_request

WORDS = PROMPTS[0]


class Seeing:
    """A text model that sees tokens: the media of key "5 6" are the rows of the tokens 5 and 6. It cannot see those of "!"."""

    def __init__(self, folder: Path) -> None:
        self._model: Any = load(stage_config(folder))
        self.calls: list[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def encode(self, inputs: Sequence[MediaInput]) -> list[EncodedMedia]:
        self.calls.append([one.key for one in inputs])
        return [EncodedMedia(self._model.embed(torch.tensor(list(map(int, one.key.split()))))) for one in inputs]


def seen(prompt: Sequence[int], *spans: tuple[int, int], **named: Any) -> ProcessedPrompt:
    """`prompt`, of which the tokens of `spans` are media."""
    ids = np.array(prompt)
    media = []
    for start, end in spans:
        key = " ".join(map(str, ids[start:end]))
        media.append(MediaInput("image", key, ((start, end),), end - start, {}))
        ids[start:end] = 0
    return ProcessedPrompt(tuple(ids.tolist()), media=tuple(media), **named)


class Processor:
    """Gives what was put in by the number in the prompt's text."""

    tokenizer, eos_token_ids = train_tokenizer(), frozenset[int]()

    def __init__(self, *prompts: ProcessedPrompt) -> None:
        self.prompts = prompts

    def __call__(self, request: OmniRequest) -> ProcessedPrompt:
        return self.prompts[int(request.prompt.text or 0)]


def seeing_engine(folder: Path, *prompts: ProcessedPrompt, **changes: Any) -> tuple[ARStageEngine, Seeing]:
    model = Seeing(folder)
    return ar_engine(stage_config(folder, **changes), model, Processor(*prompts)), model


def ask(engine: ARStageEngine, number: int, count: int = 6, targets: Sequence[int] = (CLIENT,), **named: Any) -> None:
    request = stage_request(f"r{number}", Prompt(text=str(number)), greedy(count, **named), number, targets=targets)
    engine.add(request)


def test_media_stand_for_what_they_are_and_are_encoded_once(llama: Path, engine: ARStageEngine) -> None:
    """Fault: an answer about a picture is that of its placeholders; the same picture is encoded for every question."""
    others = [*WORDS[:9], *LONG[0][9:]]
    seeing, model = seeing_engine(llama, seen(WORDS, (4, 9)), seen(others, (4, 9)), seen(LONG[1], (0, 2), (3, 8)))
    for number in range(3):
        ask(seeing, number)
    heard = drain(seeing)
    for number, prompt in enumerate((WORDS, others, LONG[1])):
        assert heard[f"r{number}"].tokens() == answer(engine, prompt, greedy(6)).tokens()
    ask(seeing, 0)
    assert drain(seeing)["r0"].tokens() == heard["r0"].tokens()
    assert [len(call) for call in model.calls] == [3]
    expect_empty(seeing)


def test_encoding_and_answering_take_turns(llama: Path) -> None:
    """Fault: an answer stands still while a row of pictures is encoded, or a picture waits until all answers are there."""
    prompts = [seen(range(5 + index, 45 + index), (0, 30)) for index in range(4)]
    seeing, model = seeing_engine(llama, ProcessedPrompt(tuple(WORDS)), *prompts, max_num_batched_tokens=30)
    ask(seeing, 0, 12)
    for number in range(1, 5):
        ask(seeing, number, 1)
    told: list[int] = []

    def count(_step: int) -> None:
        told.append(len(model.calls))

    heard = drain(seeing, count)
    assert model.calls == [[prompt.media[0].key] for prompt in prompts]
    assert told[:8] == [0, 1, 1, 2, 2, 3, 3, 4]
    assert [heard[f"r{number}"].finish_reason for number in range(5)] == ["length"] * 5


def broken(prompt: ProcessedPrompt) -> ProcessedPrompt:
    (one,) = prompt.media
    bad = MediaInput(one.kind, "no number", one.spans, one.tokens, {})
    return ProcessedPrompt(prompt.token_ids, media=(bad,))


def test_a_broken_picture_fails_those_that_have_it(llama: Path) -> None:
    """Fault: one picture that cannot be read fails its neighbours, or waits for ever."""
    whole, half = seen(WORDS, (4, 9)), broken(seen(LONG[0], (2, 4)))
    seeing, _ = seeing_engine(llama, half, whole, half)
    for number in range(3):
        ask(seeing, number, 2)
    heard = drain(seeing)
    assert [heard[f"r{number}"].error is not None for number in range(3)] == [True, False, True]
    assert heard["r1"].finish_reason == "length"
    assert seeing.gauges()["batches_rerun"] == 1
    expect_empty(seeing)


def test_one_that_is_cancelled_before_its_turn_leaves_nothing(llama: Path) -> None:
    """Fault: media of a request that is gone are encoded, or its rows stay."""
    seeing, model = seeing_engine(llama, seen(WORDS, (4, 9)))
    ask(seeing, 0)
    assert seeing.gauges()["waiting"] == 1
    seeing.cancel("r0")
    assert (seeing.has_work(), model.calls) == (False, [])
    ask(seeing, 0)
    seeing.step()
    seeing.cancel("r0")
    expect_empty(seeing)


def test_a_request_without_credit_rests_after_its_media(llama: Path) -> None:
    """Fault: whoever may not hand over is forgotten while its media are encoded, and runs all the same."""
    seeing, model = seeing_engine(llama, seen(WORDS, (4, 9)))
    ask(seeing, 0, 2)
    seeing.set_ready("r0", False)
    assert drain(seeing) == {}
    assert len(model.calls) == 1
    seeing.set_ready("r0", True)
    assert drain(seeing)["r0"].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (ProcessedPrompt((1, 2, 3), media=(MediaInput("image", "5", ((1, 3),), 1, {}),)), "1 rows cannot go to"),
        (ProcessedPrompt((1, 2, 3), media=(MediaInput("image", "5", ((3, 4),), 1, {}),)), "of 3"),
        (ProcessedPrompt((1, 2, 3), media=(MediaInput("image", "5 6", ((1, 2),), 1, {}),)), "2 rows were made for 1"),
        (ProcessedPrompt((1, 2, 3), positions=np.zeros((3, 2), np.int32)), r"positions come as \(3, 2\)"),
    ],
)
def test_a_processors_mistakes_are_its_requests_failure(llama: Path, prompt: ProcessedPrompt, message: str) -> None:
    """Fault: rows written beside their places, in a step of others."""
    seeing, _ = seeing_engine(llama, prompt)
    ask(seeing, 0)
    error = drain(seeing)["r0"].error
    assert error is not None
    with pytest.raises(StageFailedError, match=message):
        raise StageFailedError(error.message)
    expect_empty(seeing)


def test_a_model_without_an_encoder_refuses_media(llama: Path) -> None:
    """Fault: placeholders are answered as if they were text."""
    config = stage_config(llama)
    plain = ar_engine(config, load(config), Processor(seen(WORDS, (4, 9))))
    ask(plain, 0)
    error = drain(plain)["r0"].error
    assert error is not None
    assert "its model reads none" in error.message


HANDOFF = {"turns": np.array([[1, 2]], np.int32), "names": ["a"], "count": 3}


@pytest.mark.parametrize("outputs_at", [((1, 3), (12, 14)), (), None])
def test_other_stages_are_told_of_the_prompt_once_and_first(llama: Path, outputs_at: Any) -> None:
    """Fault: what a talker needs to begin comes with the last rows, twice, or not at all where no rows are wanted."""
    prompt = ProcessedPrompt(tuple(LONG[0]), handoff=HANDOFF, outputs_at=outputs_at)
    made, _ = seeing_engine(llama, prompt, max_num_batched_tokens=10, extras={"capture_layers": [2]})
    ask(made, 0, 3, targets=(CLIENT, 1))
    captures = [output.capture for output in drain(made)["r0"].outputs if output.capture is not None]
    assert captures[0].metadata["prompt"] == {"names": ["a"], "count": 3}
    assert captures[0].tensors["turns"].spec.shape == (1, 2)
    assert not any("prompt" in one.metadata or "turns" in one.tensors for one in captures[1:])
    positions = [one.metadata["positions"] for one in captures if "positions" in one.metadata]
    length = len(LONG[0])
    expected = {
        ((1, 3), (12, 14)): [[1, 3], [12, 14]],
        (): [],
        None: [[0, 10], [10, 20], [20, 30], [30, length], [length, length + 1], [length + 1, length + 2]],
    }
    assert positions == expected[outputs_at]
    assert all("hidden_2" in one.tensors for one in captures if "positions" in one.metadata)


def test_the_client_alone_is_told_nothing_of_the_prompt(llama: Path) -> None:
    """Fault: whoever asked gets arrays that are for other stages."""
    prompt = ProcessedPrompt(tuple(LONG[0]), handoff=HANDOFF, outputs_at=((1, 3),))
    made, _ = seeing_engine(llama, prompt, extras={"capture_layers": [2]})
    ask(made, 0, 2)
    captures = [output.capture for output in drain(made)["r0"].outputs if output.capture is not None]
    assert [(dict(one.tensors), list(one.metadata)) for one in captures] == [({}, ["choices"])] * 2


def test_a_reset_cache_recalls_nothing(llama: Path) -> None:
    """Fault: captured rows outlive the blocks they belong to."""
    prompt = ProcessedPrompt(tuple(LONG[0]), outputs_at=((1, 20),))
    made, _ = seeing_engine(llama, prompt, extras={"capture_layers": [2]})
    cached = []
    for reset in (False, False, True):
        if reset:
            made.control("reset_prefix_cache", {})
        ask(made, 0, 2, targets=(1,))
        cached.append(drain(made)["r0"].usage.cached_tokens)
    assert cached == [0, 32, 0]
