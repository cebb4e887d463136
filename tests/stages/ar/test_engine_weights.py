"""What the tiny models show holds for the fetched one: greedy tokens are those of transformers' `generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omnistage.core.params import SamplingParams
from omnistage.core.request import Prompt
from omnistage.models.causal_lm.loader import load
from omnistage.models.causal_lm.processor import load_processor
from omnistage.models.demo.weights import DemoWeights
from omnistage.stages.ar.build import ar_engine
from omnistage.stages.ar.engine import ARStageEngine
from tests.tiny.engines import answer, answers, greedy, stage_config
from tests.tiny.references import generate_greedily, load_reference

pytestmark = pytest.mark.weights

MAX_TOKENS = 6
TEXT = (
    "The lighthouse stood on a cliff above the village, and every evening its keeper climbed the hundred steps with a "
    "can of oil, a book of poems and a loaf of bread. He did not mind the wind. In winter the sea threw stones at the "
    "door, and in summer the swallows built their nests below the gallery, where no cat could ever reach them."
)


class Fetched:
    """The model, loaded once, and what transformers says to 32 pieces of a text, of mixed lengths."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = load(stage_config(folder))
        self.processor = load_processor(stage_config(folder))
        ids = self.processor.tokenizer.encode(TEXT).ids
        self.prompts = [ids[start : start + 2 + (7 * start) % 33] for start in range(32)]
        reference = load_reference(folder)
        self.expected = [generate_greedily(reference, prompt, MAX_TOKENS) for prompt in self.prompts]
        chat = Prompt(messages=({"role": "user", "content": "What is the capital of France?"},))
        self.chat = chat
        ids_of_chat = reference_ids(folder, chat)
        self.expected_chat = generate_greedily(reference, ids_of_chat, 8)

    def engine(self, **changes: Any) -> ARStageEngine:
        named = {"kv_cache_bytes": 64 * 2**20, **changes}
        return ar_engine(stage_config(self.folder, **named), self.model, self.processor)


def reference_ids(folder: Path, chat: Prompt) -> list[int]:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids: list[int] = tokenizer.apply_chat_template(
        list(chat.messages or ()), add_generation_prompt=True, return_dict=False
    )
    return ids


@pytest.fixture(scope="module")
def fetched(demo_weights: DemoWeights) -> Fetched:
    return Fetched(demo_weights.thinker_dir)


def test_a_chat_alone(fetched: Fetched) -> None:
    """Fault: the prompt, a position or a norm differs from what the model was trained with."""
    heard = answer(fetched.engine(), fetched.chat, greedy(8))
    assert heard.tokens() == fetched.expected_chat
    assert "Paris" in heard.text()


@pytest.mark.parametrize(("batch", "budget"), [(1, 512), (2, 1), (8, 16), (32, 512)])
def test_in_batches_and_chunks(fetched: Fetched, batch: int, budget: int) -> None:
    """Fault: what holds for four layers does not hold for thirty."""
    engine = fetched.engine(max_num_batched_tokens=budget, enable_prefix_caching=False)
    found = [heard.tokens() for heard in answers(engine, fetched.prompts[:batch], greedy(MAX_TOKENS))]
    assert found == fetched.expected[:batch]


def test_on_a_prefix_hit(fetched: Fetched) -> None:
    """Fault: a block that is shared holds something else."""
    engine = fetched.engine()
    index = max(range(32), key=lambda index: len(fetched.prompts[index]))
    for cached in (0, 32):
        heard = answer(engine, fetched.prompts[index], greedy(MAX_TOKENS))
        assert (heard.tokens(), heard.usage.cached_tokens) == (fetched.expected[index], cached)


def test_after_preemption(fetched: Fetched) -> None:
    """Fault: a request that is computed again goes on differently."""
    nbytes_of_block = 2 * 30 * 3 * 64 * 16 * 4
    engine = fetched.engine(kv_cache_bytes=5 * nbytes_of_block, max_model_len=64)
    chosen = [index for index in range(32) if len(fetched.prompts[index]) % 16 in (12, 14, 15)][:3]
    found = answers(engine, [fetched.prompts[index] for index in chosen], greedy(MAX_TOKENS))
    assert engine.gauges()["preemptions"] > 0
    assert [heard.tokens() for heard in found] == [fetched.expected[index] for index in chosen]


def test_a_seed_decides_alone_and_among_neighbours(fetched: Fetched) -> None:
    """Fault: rounding of a wider batch, or a neighbour's draw, changes a token."""
    params = SamplingParams(temperature=0.8, top_p=0.95, seed=5, max_tokens=MAX_TOKENS, ignore_eos=True)
    engine = fetched.engine()
    together = answers(engine, fetched.prompts, params)
    assert together[7].tokens() == answer(engine, fetched.prompts[7], params).tokens()
