"""Ten thousand requests of random lengths through a cache that holds a few of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from omnistage.obs.process import process_figures
from omnistage.stages.ar.engine import ARStageEngine
from tests.tiny.engines import build, greedy, stage_request

REQUESTS = 10_000
AT_ONCE = 48
PART = 2_000
GROWTH_NBYTES = 2 * 2**20


def test_ten_thousand_requests_leave_nothing_behind(checkpoint: Callable[[str], Path], computed_by: None) -> None:
    """Fault: a block, a slot or some memory is lost now and then, with a preemption or a shared prefix; memory that is kept for
    every count of rows."""
    engine = build(checkpoint("llama"), kv_cache_bytes=2**20, max_model_len=128)
    empty = engine.gauges()
    chance = random.Random(0)
    openings = [[chance.randrange(5, 380) for _ in range(40)] for _ in range(5)]
    cached = run(engine, PART, openings, chance)
    sizes = [process_figures()["rss_nbytes"]]
    for _ in range(REQUESTS // PART - 1):
        cached += run(engine, PART, openings, chance)
        sizes.append(process_figures()["rss_nbytes"])
    after = engine.gauges()
    counters = {"preemptions", "prefix_queries_total", "prefix_hits_total"}
    assert {name: after[name] for name in empty if name not in counters} == {
        name: empty[name] for name in empty if name not in counters
    }
    assert after["prefix_hits_total"] == cached > 0
    assert after["preemptions"] > 0
    # What is lost with requests is lost in every part of them; what an allocator takes for itself it takes once.
    assert min(later - earlier for earlier, later in pairwise(sizes)) <= GROWTH_NBYTES


def run(engine: ARStageEngine, requests: int, openings: Sequence[Sequence[int]], chance: random.Random) -> int:
    """Until the last has ended, so that every count of rows has been there; how many tokens were found in the cache."""
    begun = ended = cached = 0
    while ended < requests:
        while begun < requests and begun - ended < AT_ONCE:
            own = [chance.randrange(5, 380) for _ in range(chance.randint(1, 40))]
            prompt = [*chance.choice(openings)[: chance.randint(0, 40)], *own]
            engine.add(stage_request(f"r{begun}", prompt, greedy(chance.randint(1, 8)), begun))
            begun += 1
        for output in engine.step():
            assert output.error is None
            if output.finish_reason is not None:
                ended, cached = ended + 1, cached + output.usage.cached_tokens
    return cached
