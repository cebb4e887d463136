"""How requests begin: what is refused, whose parameters hold, which prompts share blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from omnistage.core.errors import StageFailedError
from omnistage.core.params import GenerationParams
from omnistage.core.request import OmniRequest, Prompt
from omnistage.modeling.protocols import ProcessedPrompt
from omnistage.models.causal_lm.loader import load
from omnistage.stages.ar.build import ar_engine
from omnistage.stages.ar.engine import ARStageEngine
from tests.stages.ar.prompts import LONG, PROMPTS, expect_empty
from tests.tiny.checkpoints import VOCAB_SIZE, train_tokenizer
from tests.tiny.engines import answer, build, drain, greedy, stage_config, stage_request


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([5] * 300, greedy(1), "prompt: 300 tokens"),
        ([5] * 250, greedy(10), "max_tokens: 10 after a prompt of 250 tokens makes 260"),
        ([5, VOCAB_SIZE], greedy(1), f"prompt_token_ids: {VOCAB_SIZE}"),
        (Prompt(text="  "), greedy(1), "prompt: '  '"),
        ([5], greedy(1, logit_bias={VOCAB_SIZE: 1.0}), f"logit_bias: {VOCAB_SIZE}"),
        ([5], greedy(1, stop_token_ids=(VOCAB_SIZE,)), f"stop_token_ids: {VOCAB_SIZE}"),
        ([5], GenerationParams(), "stage llm"),
    ],
)
def test_what_cannot_be_served_comes_back_as_the_callers_error(
    engine: ARStageEngine, prompt: Any, params: Any, message: str
) -> None:
    """Fault: a bad field raises in the loop, waits for ever, or fails without saying what would be right."""
    heard = answer(engine, prompt, params)
    assert heard.error is not None
    assert heard.error.code == "invalid_request"
    assert message in heard.error.message
    expect_empty(engine)


def test_a_stage_without_parameters_takes_its_own(llama: Path) -> None:
    """Fault: a request without an entry for the stage fails."""
    engine = build(llama, default_sampling_params=greedy(3))
    request = stage_request("only", PROMPTS[0], greedy(9))
    request.request.stage_params.clear()
    engine.add(request)
    assert len(drain(engine)["only"].tokens()) == 3


def test_an_entry_stage_needs_a_processor(llama: Path) -> None:
    """Fault: a stage that cannot read prompts raises in the loop."""
    config = stage_config(llama)
    heard = answer(ar_engine(config, load(config)), [5], greedy(1, stop=()))
    assert heard.error is not None
    assert heard.error.code == StageFailedError.code


def test_embeddings_beside_equal_tokens_are_not_shared(llama: Path, engine: ARStageEngine) -> None:
    """Fault: a prompt with other media behind the same tokens is answered from the first one's blocks."""
    model = load(stage_config(llama))

    class Media:
        """A processor that reads its embeddings from the request's text."""

        tokenizer, eos_token_ids = train_tokenizer(), frozenset[int]()

        def __call__(self, request: OmniRequest) -> ProcessedPrompt:
            ids = LONG[int(request.prompt.text or 0)]
            return ProcessedPrompt((0,) * len(ids), model.embed(torch.tensor(ids)))

    own = ar_engine(stage_config(llama), model, Media())
    for index in range(2):
        expected = answer(engine, LONG[index], greedy(6)).tokens()
        assert answer(own, Prompt(text=str(index)), greedy(6)).tokens() == expected
