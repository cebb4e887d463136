"""Stages behind others: prompts that come in parts, through a bridge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.modeling.tensors import TorchSource, to_torch
from omnistage.models.causal_lm.loader import load
from omnistage.models.causal_lm.processor import load_processor
from omnistage.stages.ar.build import ar_engine
from omnistage.stages.ar.engine import ARStageEngine
from omnistage.stages.base import StageInput
from tests.stages.ar.prompts import LONG, PROMPTS, expect_empty
from tests.tiny.checkpoints import VOCAB_SIZE
from tests.tiny.engines import answer, drain, greedy, stage_config, stage_request


def token_bridge(state: Any, _source: int, seq: int, payload: MultimodalPayload | None, _last: bool) -> Any:
    if payload is None:
        return state, []
    if payload.metadata.get("break"):
        raise ValueError("no such thing")
    return state, [StageInput(dict(payload.metadata) or {"embeds": to_torch(payload.tensors["rows"])})]


def fed_engine(folder: Path, **changes: Any) -> ARStageEngine:
    config = stage_config(folder, input_sources=(0,), bridge="tests:unused", **{"max_num_batched_tokens": 8, **changes})
    return ar_engine(config, load(config), load_processor(config), token_bridge)


def feed_tokens(engine: ARStageEngine, name: str, prompt: list[int], size: int) -> None:
    for seq, start in enumerate(range(0, len(prompt), size)):
        item = MultimodalPayload(metadata={"token_ids": prompt[start : start + size]})
        engine.feed(name, 0, seq, item, last=start + size >= len(prompt))


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_prompt_that_comes_in_parts(llama: Path, engine: ARStageEngine, size: int) -> None:
    """Fault: sampling begins before the prompt is complete; consumed items are not told, so credit never returns."""
    fed = fed_engine(llama)
    fed.add(stage_request("one", [], greedy(6)))
    assert not fed.has_work()
    feed_tokens(fed, "one", PROMPTS[0], size)
    heard = drain(fed)["one"]
    assert heard.tokens() == answer(engine, PROMPTS[0], greedy(6)).tokens()
    consumed = [item for output in heard.outputs for item in output.consumed]
    assert consumed[-1] == (0, -(-len(PROMPTS[0]) // size) - 1)
    expect_empty(fed)


def test_a_prompt_of_embeddings(llama: Path, engine: ARStageEngine) -> None:
    """Fault: embeddings at the wrong rows, lost over a chunk's border, or shared as if their tokens told what they are."""
    fed = fed_engine(llama)
    prompt_a, prompt_b = LONG[:2]
    table = load(stage_config(llama)).embed(torch.tensor(prompt_a))
    other = load(stage_config(llama)).embed(torch.tensor(prompt_b))
    for name, rows in (("one", table), ("two", other), ("three", table)):
        fed.add(stage_request(name, [], greedy(6, n=2), ord(name[0])))
        fed.feed(name, 0, 0, MultimodalPayload({"rows": TorchSource(rows[:9])}), last=False)
        fed.feed(name, 0, 1, MultimodalPayload({"rows": TorchSource(rows[9:])}), last=False)
        fed.feed(name, 0, 2, None, last=True)
    heard = drain(fed)
    for name, prompt in (("one", prompt_a), ("two", prompt_b), ("three", prompt_a)):
        expected = answer(engine, prompt, greedy(6)).tokens()
        assert [heard[name].tokens(index) for index in range(2)] == [expected, expected]
    expect_empty(fed)


def test_a_slow_stage_takes_no_more_than_a_step_of_input_ahead(llama: Path) -> None:
    """Fault: everything is taken over at once, and credit slows nobody."""
    fed = fed_engine(llama, input_window=2)
    fed.add(stage_request("one", [], greedy(1)))
    fed.set_ready("one", False)
    feed_tokens(fed, "one", list(range(5, 65)), 4)
    output = fed.step()[0]
    assert output.consumed == ((0, 4),)  # three items make a step, two wait unused
    fed.set_ready("one", True)
    assert drain(fed)["one"].finish_reason == "length"


def test_a_request_that_may_not_hand_over_copies_out_what_it_was_lent(llama: Path) -> None:
    """Fault: what waits for a request whose caller reads slowly fills the arena that everybody else needs."""
    fed = fed_engine(llama, input_window=1)
    fed.add(stage_request("one", [], greedy(1)))
    for seq in range(6):
        item = MultimodalPayload({"x": Tensor.of(np.zeros(4, np.uint8))}, {"token_ids": [5] * 8}, lent=True)
        fed.feed("one", 0, seq, item, last=False)
    fed.set_ready("one", False)
    (output,) = fed.step()
    assert (output.consumed, output.copied) == (((0, 2),), ((0, 5),))
    fed.feed(
        "one",
        0,
        6,
        MultimodalPayload({"x": Tensor.of(np.zeros(4, np.uint8))}, {"token_ids": [5]}, lent=True),
        last=True,
    )
    (output,) = fed.step()
    assert (output.consumed, output.copied) == ((), ((0, 6),))
    fed.set_ready("one", True)
    assert drain(fed)["one"].finish_reason == "length"


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([MultimodalPayload(metadata={"break": True})], "the bridge of stage llm failed: ValueError: no such thing"),
        ([MultimodalPayload(metadata={"something": 1})], "made something; accepted: token_ids (a list) or embeds"),
        ([MultimodalPayload(metadata={"token_ids": [VOCAB_SIZE]})], "made tokens out of"),
        ([MultimodalPayload(metadata={"token_ids": [5] * 400})], "prompt: 400 tokens"),
        ([None], "was given no input"),
        (
            [
                MultimodalPayload(metadata={"token_ids": [5]}),
                MultimodalPayload({"rows": TorchSource(torch.ones(1, 64))}),
            ],
            "mixes tokens and embeddings",
        ),
        ([MultimodalPayload(metadata={"embeds": "text"})], "embeddings come as a tensor or an array, not as str"),
    ],
)
def test_input_that_cannot_be_used_fails_its_request(
    llama: Path, items: list[MultimodalPayload | None], message: str
) -> None:
    """Fault: a bridge's mistake ends the loop, or the request never ends."""
    fed = fed_engine(llama)
    fed.add(stage_request("one", [], greedy(1)))
    for seq, item in enumerate(items):
        fed.feed("one", 0, seq, item, last=seq == len(items) - 1)
    heard = drain(fed)["one"]
    assert heard.error is not None
    assert message in heard.error.message
    expect_empty(fed)


def test_a_gap_in_the_items_fails_at_once(llama: Path) -> None:
    """Fault: a request waits for an item that was lost."""
    fed = fed_engine(llama)
    fed.add(stage_request("one", [], greedy(1)))
    fed.feed("one", 0, 1, MultimodalPayload(metadata={"token_ids": [5]}), last=False)
    fed.feed("unknown", 0, 0, None, last=True)
    heard = drain(fed)["one"]
    assert heard.error is not None
    assert "where item 0 was due" in heard.error.message
