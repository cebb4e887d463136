"""Whole conversations with media, prepared, carried and thought about as transformers does, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omnistage.core.request import OmniRequest
from omnistage.modeling.protocols import ProcessedPrompt
from omnistage.models.qwen3_omni.processor import load_processor
from omnistage.stages.prepare.coding import decode, encode
from omnistage.wire.messages import CLIENT
from tests.models.qwen3_omni.thinking import expect_equal_thoughts, think, thinker_engine
from tests.references.qwen3_omni_cases import CASES, prompt_of
from tests.tiny.engines import drain, greedy, stage_config, stage_request

NAMES = ("text", "everything", "media_in_turns", "spoken_twice", "spoken_then_image", "long_sound")
COUNT = 6


@pytest.mark.usefixtures("computed_by")
def test_conversations_are_answered_as_by_transformers(tiny: Path, theirs: Any) -> None:
    """Fault: sound within a film is put where its pictures are; what a helper process prepared is read otherwise; rows of
    an earlier turn are handed on in the place of a later one's."""
    config = stage_config(tiny, max_model_len=4096)
    processor = load_processor(config)
    engine, prepared = thinker_engine(tiny, max_num_batched_tokens=100, kv_cache_bytes=2**24)
    prompts: dict[str, ProcessedPrompt] = {}
    for index, name in enumerate(NAMES):
        asked = OmniRequest(request_id="r", prompt=prompt_of(CASES[name]), wants=("text", "audio"), stage_params={})
        made = decode(encode(processor(asked)))
        assert isinstance(made, ProcessedPrompt)
        prompts[name] = made
        engine.add(stage_request(name, prepared.hold(made), greedy(COUNT), index, targets=(CLIENT, 1)))
    heard = drain(engine)
    for name, prompt in prompts.items():
        expect_equal_thoughts(heard[name], think(theirs, prompt, COUNT))
        first = next(output.capture for output in heard[name].outputs if output.capture is not None)
        assert set(prompt.handoff) == {*first.metadata["prompt"], *first.tensors} - {"hidden_3"}
