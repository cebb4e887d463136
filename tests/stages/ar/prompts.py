"""Prompts of these tests, and an engine that nothing is left behind in."""

from __future__ import annotations

from omnistage.stages.ar.engine import ARStageEngine
from tests.tiny.checkpoints import VOCAB_SIZE
from tests.tiny.references import random_prompts

PROMPTS = random_prompts(32, VOCAB_SIZE, longest=40, seed=4)
LONG = [prompt for prompt in PROMPTS if len(prompt) > 34]


def expect_empty(engine: ARStageEngine) -> None:
    gauges = engine.gauges()
    assert gauges["kv_blocks_free"] == gauges["kv_blocks_total"]
    assert (gauges["running"], gauges["waiting"]) == (0, 0)
    assert not engine.has_work()
