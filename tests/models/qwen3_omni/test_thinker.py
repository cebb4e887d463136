"""The thinker in an engine against transformers, token by token: every kind of media, cut, shared, crowded out, beside others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.protocols import ProcessedPrompt
from omnistage.models.qwen3_omni.thinker import load
from omnistage.wire.messages import CLIENT
from tests.models.qwen3_omni.thinking import (
    ACCEPT,
    expect_equal_thoughts,
    hidden_of,
    picture,
    prompt_of,
    sound,
    think,
    thinker_engine,
    words,
)
from tests.tiny.engines import answer, drain, greedy, stage_config, stage_request

COUNT = 8
MIXES: dict[str, Callable[[Any, np.random.Generator], ProcessedPrompt]] = {
    "text": lambda of, r: prompt_of(of, words(r, 30)),
    "image": lambda of, r: prompt_of(of, words(r, 5), picture(r), words(r, 7)),
    "audio": lambda of, r: prompt_of(of, words(r, 5), sound(r, 230), words(r, 7)),
    "video": lambda of, r: prompt_of(of, words(r, 5), picture(r, 4, 4, frames=5), words(r, 7)),
    "both": lambda of, r: prompt_of(of, words(r, 5), picture(r), words(r, 3), sound(r, 130), words(r, 4)),
    "many": lambda of, r: prompt_of(
        of, picture(r, 2, 2), sound(r, 40), picture(r, 8, 4), words(r, 3), picture(r, 4, 4, frames=2), sound(r, 300)
    ),
}


@pytest.mark.usefixtures("computed_by")
@pytest.mark.parametrize("budget", [512, 16])
@pytest.mark.parametrize("mix", MIXES)
def test_thinks_as_transformers_does(tiny: Path, theirs: Any, mix: str, budget: int) -> None:
    """Fault: a row of a medium at another's place, an addition after the wrong layer, a position of text behind a picture."""
    prompt = MIXES[mix](theirs, np.random.default_rng(len(mix)))
    expected = think(theirs, prompt, COUNT)
    engine, prepared = thinker_engine(tiny, max_num_batched_tokens=budget)
    engine.add(stage_request("one", prepared.hold(prompt), greedy(COUNT), targets=(CLIENT, 1)))
    heard = drain(engine)["one"]
    expect_equal_thoughts(heard, expected)
    spans = [
        span for output in heard.outputs if output.capture for span in output.capture.metadata.get("positions", ())
    ]
    assert rows_of(spans) == rows_of([edge for span in prompt.outputs_at or () for edge in span])


def rows_of(edges: list[int]) -> list[int]:
    return [row for start, end in zip(edges[::2], edges[1::2], strict=True) for row in range(start, end)]


@pytest.mark.usefixtures("computed_by")
def test_eight_at_once_are_each_as_alone(tiny: Path, theirs: Any) -> None:
    """Fault: media of one request in the rows of another; rotations of the first row for all; kernels that skip a sequence."""
    random = np.random.default_rng(3)
    prompts = [make(theirs, random) for make in (*MIXES.values(), MIXES["image"], MIXES["audio"])]
    engine, prepared = thinker_engine(tiny, max_num_batched_tokens=64)
    for index, prompt in enumerate(prompts):
        engine.add(stage_request(f"r{index}", prepared.hold(prompt), greedy(COUNT), index, targets=(CLIENT, 1)))
    heard = drain(engine)
    for index, prompt in enumerate(prompts):
        expect_equal_thoughts(heard[f"r{index}"], think(theirs, prompt, COUNT))
    gauges = engine.gauges()
    assert gauges["kv_blocks_free"] == gauges["kv_blocks_total"]


def test_a_prefix_is_shared_with_its_captured_rows(tiny: Path, theirs: Any) -> None:
    """Fault: the second question about a picture is computed from the beginning, or hands on fewer rows than the first."""
    random = np.random.default_rng(5)
    begin, shown, heard_first = words(random, 20), picture(random, 8, 8), sound(random, 200)
    first = prompt_of(theirs, begin, shown, heard_first, words(random, 40))
    second = prompt_of(theirs, begin, shown, heard_first, words(random, 30))
    other = prompt_of(theirs, begin, picture(random, 8, 8), heard_first, words(random, 30))
    engine, prepared = thinker_engine(tiny, max_num_batched_tokens=24)
    found = []
    for name, prompt in (("first", first), ("second", second), ("other", other)):
        engine.add(stage_request(name, prepared.hold(prompt), greedy(COUNT), targets=(CLIENT, 1)))
        found.append(drain(engine)[name])
        expect_equal_thoughts(found[-1], think(theirs, prompt, COUNT))
    assert [one.usage.cached_tokens for one in found] == [0, 64, 16]
    before = torch.stack([hidden_of(one, ACCEPT)[:40] for one in found[:2]])
    assert torch.equal(before[0], before[1])


def test_without_targets_a_prefix_is_shared_and_nothing_is_captured(tiny: Path, theirs: Any) -> None:
    """Fault: rows are captured for nobody; a hit is cut although nobody wants rows."""
    prompt = MIXES["both"](theirs, np.random.default_rng(6))
    engine, prepared = thinker_engine(tiny)
    cached = []
    for _ in range(2):
        heard = answer(engine, prepared.hold(prompt), greedy(COUNT))
        cached.append(heard.usage.cached_tokens)
        assert heard.tokens() == think(theirs, prompt, COUNT).token_ids
        assert not any(output.capture and output.capture.tensors for output in heard.outputs)
    assert cached == [0, len(prompt.token_ids) // 16 * 16]


@pytest.mark.usefixtures("computed_by")
def test_one_that_was_crowded_out_goes_on_as_if_it_had_not_been(tiny: Path, theirs: Any) -> None:
    """Fault: media are lost with the blocks, rows are handed on twice, positions begin anew."""
    random = np.random.default_rng(7)
    prompt, older = MIXES["many"](theirs, random), MIXES["text"](theirs, random)
    engine, prepared = thinker_engine(tiny, max_num_seqs=1, max_num_batched_tokens=32)
    engine.add(stage_request("one", prepared.hold(prompt), greedy(COUNT), 5, targets=(CLIENT, 1)))

    def an_older_one_comes(step: int) -> None:
        if step in (3, 9):
            engine.add(stage_request(f"older {step}", prepared.hold(older), greedy(2), step // 3))

    heard = drain(engine, an_older_one_comes)
    assert engine.gauges()["preemptions"] == 2
    expect_equal_thoughts(heard["one"], think(theirs, prompt, COUNT))


def test_forty_pictures(tiny: Path, theirs: Any) -> None:
    """Fault: anything that counts media with a byte, or grows with their square."""
    random = np.random.default_rng(8)
    parts = [part for _ in range(40) for part in (picture(random, 2, 4), words(random, 2))]
    prompt = prompt_of(theirs, *parts)
    engine, prepared = thinker_engine(tiny, max_num_batched_tokens=64)
    engine.add(stage_request("one", prepared.hold(prompt), greedy(COUNT), targets=(CLIENT, 1)))
    expect_equal_thoughts(drain(engine)["one"], think(theirs, prompt, COUNT))


def test_a_picture_larger_than_a_step(tiny: Path, theirs: Any) -> None:
    """Fault: it waits for ever, or is cut in two by the encoder."""
    random = np.random.default_rng(9)
    prompt = prompt_of(theirs, words(random, 3), picture(random, 16, 16), words(random, 3))
    engine, prepared = thinker_engine(tiny, max_num_batched_tokens=16)
    engine.add(stage_request("one", prepared.hold(prompt), greedy(COUNT), targets=(CLIENT, 1)))
    expect_equal_thoughts(drain(engine)["one"], think(theirs, prompt, COUNT))


def test_choices_read_the_same_media(tiny: Path, theirs: Any) -> None:
    """Fault: the second choice has the words and not the picture."""
    prompt = MIXES["image"](theirs, np.random.default_rng(10))
    engine, prepared = thinker_engine(tiny, enable_prefix_caching=False)
    heard = answer(engine, prepared.hold(prompt), greedy(COUNT, n=2))
    assert [heard.tokens(index) for index in range(2)] == [think(theirs, prompt, COUNT).token_ids] * 2


@pytest.mark.usefixtures("computed_by")
def test_bfloat16_hands_on_what_float32_does_but_for_rounding(tiny: Path, theirs: Any) -> None:
    """Fault: rows of media, additions or rotations in a dtype that the step does not compute with."""
    prompt = MIXES["both"](theirs, np.random.default_rng(11))
    engine, prepared = thinker_engine(tiny, dtype="bfloat16")
    engine.add(stage_request("one", prepared.hold(prompt), greedy(COUNT), targets=(CLIENT, 1)))
    heard = drain(engine)["one"]
    expected = think(theirs, prompt, 1).hidden
    found = hidden_of(heard, ACCEPT)
    assert found.dtype is torch.bfloat16
    assert len(heard.tokens()) == COUNT
    assert (found.float() - expected).abs().mean() < 0.05 * expected.abs().mean()


def test_weights_of_an_encoder_that_are_not_there_are_named(tiny: Path, tmp_path: Path) -> None:
    """Fault: an encoder runs with weights that nobody wrote."""
    from safetensors.torch import load_file, save_file

    for path in tiny.iterdir():
        if path.suffix == ".json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(tiny / "model.safetensors")
    del weights["thinker.audio_tower.proj1.bias"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(BrokenCheckpointError, match=r"audio_tower: .*proj1\.bias"):
        load(stage_config(tmp_path))
