"""The runner does what a plan says, as often as it is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from omnistage.core.errors import UnsupportedByModelError
from omnistage.core.params import SamplingParams
from omnistage.modeling.protocols import ARModel, Attend
from omnistage.modeling.sampling import SampleRow
from omnistage.modeling.step import ARStep, StepRows
from omnistage.models.causal_lm.loader import load
from omnistage.stages.ar.plan import PlanRow, SequenceKey, StepPlan
from omnistage.stages.ar.runner import ARRunner, RowResult
from tests.tiny.engines import stage_config

GREEDY = SampleRow(SamplingParams(temperature=0.0), seed=0, position=0)
KEY, OTHER = SequenceKey("a", 0), SequenceKey("b", 0)


def runner(model: ARModel) -> ARRunner:
    return ARRunner(model, num_blocks=9, block_size=4, max_num_seqs=2, max_model_len=16, capture_layers=(1,))


def row(key: SequenceKey, slot: int, start: int, tokens: list[int], blocks: list[int], **named: Any) -> PlanRow:
    given = {"samples": True, "first_block": 0, **named}
    return PlanRow(key, slot, start, tuple(tokens), blocks=tuple(blocks), **given)


def run(made: ARRunner, *rows: PlanRow) -> list[RowResult]:
    made.launch(StepPlan(rows), [GREEDY for one in rows if one.samples])
    return made.collect()


def token(result: RowResult) -> int | None:
    assert result.sampled is not None
    return result.sampled.token


def test_a_plan_may_be_run_again(llama: Path) -> None:
    """Fault: a step that is repeated sees itself twice."""
    made = runner(load(stage_config(llama)))
    prompt = row(KEY, 0, 0, [5, 6, 7, 8, 9], [3, 1])
    first = token(run(made, prompt)[0])
    assert first is not None
    assert token(run(made, prompt)[0]) == first
    decode = row(KEY, 0, 5, [first], [], first_block=2)
    assert token(run(made, decode)[0]) == token(run(made, decode)[0])


def test_only_rows_that_sample_are_sampled(llama: Path) -> None:
    """Fault: draws given to the wrong rows."""
    model = load(stage_config(llama))
    made = runner(model)
    found = run(made, row(KEY, 0, 0, [5, 6], [1], samples=False), row(OTHER, 1, 0, [7, 8, 9], [2]))
    assert found[0].sampled is None
    assert token(found[1]) == token(run(runner(model), row(OTHER, 0, 0, [7, 8, 9], [5]))[0])


def test_hidden_states_are_cut_to_what_is_wanted(llama: Path) -> None:
    """Fault: rows that were handed on already, or nobody wants."""
    made = runner(load(stage_config(llama)))
    found = run(made, row(KEY, 0, 0, [5, 6, 7], [1], captures=((1, 3),)), row(OTHER, 1, 0, [7, 8], [2]))
    assert found[0].hidden[1].shape == (2, 64)
    assert found[1].hidden == {}


def test_embeddings_stand_in_for_tokens_until_forgotten(llama: Path) -> None:
    """Fault: embeddings of another sequence or position; embeddings kept after their sequence."""
    model = load(stage_config(llama))
    made = runner(model)
    prompt = row(KEY, 0, 0, [5, 6, 7], [1])
    expected = token(run(made, prompt)[0])
    made.hold_embeds(OTHER, model.embed(torch.tensor([5, 6])))
    made.hold_embeds(OTHER, model.embed(torch.tensor([7])))
    filler = row(OTHER, 1, 0, [0, 0, 0], [2])
    assert [token(one) for one in run(made, prompt, filler)] == [expected, expected]
    after = row(OTHER, 1, 3, [9], [], first_block=1)
    own = row(KEY, 0, 3, [9], [], first_block=1)
    assert token(run(made, after)[0]) == token(run(made, own)[0])
    made.forget(OTHER)
    assert token(run(made, filler)[0]) == token(run(made, row(KEY, 0, 0, [0, 0, 0], [1]))[0])


class Skips:
    """A model that attends in the first three of its layers."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, step: StepRows, attend: Attend, capture_layers: Sequence[int] = ()) -> ARStep:
        heads = torch.zeros(len(step.tokens), self._model.num_kv_heads, self._model.head_dim)
        for layer in range(3):
            attend(layer, heads, heads, heads, scale=1.0)
        return ARStep(torch.zeros(len(step.logit_rows), self._model.vocab_size), {})


def test_a_model_that_attends_otherwise_is_noticed_at_the_start(llama: Path) -> None:
    """Fault: a layer with a state of its own runs over rows of several requests as if they were one text."""
    model = load(stage_config(llama))
    made = runner(model)
    made.warm_up()
    with pytest.raises(UnsupportedByModelError, match="attends 3 times in 4 layers"):
        runner(Skips(model)).warm_up()
