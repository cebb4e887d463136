"""Greedy float32 tokens are those of transformers' `generate`, however requests are batched, chunked, shared or preempted."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from omnistage.modeling.transformers_model import load_transformers_model
from omnistage.models.causal_lm.processor import load_processor
from omnistage.stages.ar.build import ar_engine
from tests.tiny.checkpoints import VOCAB_SIZE
from tests.tiny.engines import answer, answers, build, drain, greedy, stage_config, stage_request
from tests.tiny.references import generate_greedily, load_reference, random_prompts

KINDS = ["llama", "qwen3", "qwen3_moe"]
OTHER_SHAPES = ["mistral", "qwen2"]  # a sliding window; biases
MAX_TOKENS = 8
pytestmark = pytest.mark.usefixtures("computed_by")
PROMPTS = random_prompts(32, VOCAB_SIZE)


@cache
def expected(folder: Path) -> list[list[int]]:
    model = load_reference(folder)
    return [generate_greedily(model, prompt, MAX_TOKENS) for prompt in PROMPTS]


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint(request.param)


def test_greedy_tokens_wander(folder: Path) -> None:
    """Fault: a checkpoint that repeats one token, with which every wrong cache looks right."""
    distinct = [len(set(tokens)) for tokens in expected(folder)]
    assert sum(distinct) / len(distinct) > MAX_TOKENS / 2


def test_alone(folder: Path) -> None:
    """Fault: positions, cache slots or rotations off by one."""
    engine = build(folder)
    found = [answer(engine, prompt, greedy(MAX_TOKENS)).tokens() for prompt in PROMPTS[:8]]
    assert found == expected(folder)[:8]


@pytest.mark.parametrize(("batch", "budget"), [(2, 16), (8, 1), (8, 16), (8, 512), (32, 16), (32, 512)])
def test_in_batches_and_chunks(folder: Path, batch: int, budget: int) -> None:
    """Fault: rows of neighbours mixed up, a chunk that does not see the chunks before it."""
    engine = build(folder, max_num_batched_tokens=budget, enable_prefix_caching=False)
    found = [heard.tokens() for heard in answers(engine, PROMPTS[:batch], greedy(MAX_TOKENS))]
    assert found == expected(folder)[:batch]


@pytest.mark.parametrize("kind", OTHER_SHAPES)
def test_other_shapes_alone_and_batched(checkpoint: Callable[[str], Path], kind: str) -> None:
    """Fault: a window that is one token too wide or is not seen over a chunk's border; a bias that is not read."""
    folder = checkpoint(kind)
    engine = build(folder, max_num_batched_tokens=16, enable_prefix_caching=False)
    assert [answer(engine, prompt, greedy(MAX_TOKENS)).tokens() for prompt in PROMPTS[:4]] == expected(folder)[:4]
    assert [heard.tokens() for heard in answers(engine, PROMPTS[:8], greedy(MAX_TOKENS))] == expected(folder)[:8]


def test_unchunked(folder: Path) -> None:
    """Fault: a prompt longer than the budget waits for ever where chunks are off."""
    engine = build(folder, max_num_batched_tokens=16, enable_chunked_prefill=False)
    found = [heard.tokens() for heard in answers(engine, PROMPTS[:8], greedy(MAX_TOKENS))]
    assert found == expected(folder)[:8]


def test_on_a_prefix_hit(folder: Path) -> None:
    """Fault: a shared block that holds something else, or is written to by the second who holds it."""
    engine = build(folder)
    long = [(index, prompt) for index, prompt in enumerate(PROMPTS) if len(prompt) > 40][:4]
    for index, prompt in long * 2:
        heard = answer(engine, prompt, greedy(MAX_TOKENS))
        assert heard.tokens() == expected(folder)[index]
    assert heard.usage.cached_tokens == (len(prompt) - 1) // 16 * 16


def test_after_preemption(folder: Path) -> None:
    """Fault: tokens lost or computed from stale blocks when a request is computed again."""
    engine = build(folder, kv_cache_bytes=9 * 16 * 2**10, max_model_len=120, max_num_batched_tokens=64)
    prompts = [prompt for prompt in PROMPTS if len(prompt) > 30][:3]
    found = answers(engine, prompts, greedy(36))
    assert engine.gauges()["preemptions"] > 0
    alone = build(folder)
    assert [heard.tokens() for heard in found] == [answer(alone, prompt, greedy(36)).tokens() for prompt in prompts]
    assert engine.gauges()["kv_blocks_free"] == engine.gauges()["kv_blocks_total"]


def test_the_universal_path_makes_the_same_tokens(llama: Path) -> None:
    """Fault: transformers' own modules, driven through the attention interface, see other rows than they should."""
    config = stage_config(llama, max_num_batched_tokens=16)
    engine = ar_engine(config, load_transformers_model(llama, torch.float32), load_processor(config))
    assert [heard.tokens() for heard in answers(engine, PROMPTS, greedy(MAX_TOKENS))] == expected(llama)


def test_late_arrivals_join_a_running_batch(folder: Path) -> None:
    """Fault: a request that arrives while others decode disturbs them."""
    engine = build(folder, max_num_batched_tokens=16)

    def arrive(step: int) -> None:
        if step < 12 and step % 2 == 0:
            engine.add(stage_request(f"r{step // 2}", PROMPTS[step // 2], greedy(MAX_TOKENS), step))

    heard = drain(engine, arrive)
    assert [heard[f"r{index}"].tokens() for index in range(6)] == expected(folder)[:6]
