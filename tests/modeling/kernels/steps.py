"""Random steps over random caches whose unwritten places are NaN, and random weights, for tests of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from omnistage.modeling.kernels.blocks import (
    AttentionWeights,
    ExpertsWeights,
    GatedWeights,
    HeadNorms,
    SharedExpert,
)
from omnistage.modeling.linear import PanelLinear, PlainLinear, in_panels
from omnistage.modeling.step import BlockTable, StepRows

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    """Sequences of several lengths, each computing its last rows, on blocks that lie in any order."""
    size = draw(st.sampled_from([16, 32, 64]))
    lengths = draw(st.lists(st.integers(1, 150), min_size=1, max_size=5))
    counts = [draw(st.integers(1, min(length, 40))) for length in lengths]
    per_row = max(-(-length // size) for length in lengths)
    num_blocks = per_row * len(lengths) + 1
    order = draw(st.permutations(range(1, num_blocks)))
    table = BlockTable.of([order[at : at + per_row] for at in range(0, len(order), per_row)])
    starts = [length - count for length, count in zip(lengths, counts, strict=True)]
    slots = draw(st.permutations(range(len(lengths))))
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    return {
        "rows": StepRows(table, slots, starts, counts, size, torch.device("cpu")),
        "kv_heads": kv_heads,
        "heads": kv_heads * draw(st.sampled_from([1, 2, 3, 4])),
        "dim": draw(st.sampled_from([16, 32, 48, 64, 80, 128, 256])),
        "num_blocks": num_blocks,
        "size": size,
        "window": draw(st.sampled_from([0, 1, 7, 40])),
        "dtype": draw(DTYPES),
        "random": torch.Generator().manual_seed(draw(st.integers(0, 2**20))),
    }


def caches(step: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Filled where some sequence has a token, NaN everywhere else."""
    rows: StepRows = step["rows"]
    shape = (step["num_blocks"], step["kv_heads"], step["size"], step["dim"])
    keys, values = (torch.full(shape, float("nan"), dtype=step["dtype"]) for _ in range(2))
    for slot, start, count in zip(rows.slots, rows.starts, rows.counts, strict=True):
        for position in range(start + count):
            block, offset = rows.table.blocks[slot, position // step["size"]], position % step["size"]
            for cache in (keys, values):
                cache[block, :, offset] = torch.randn(shape[1], shape[3], generator=step["random"]).to(step["dtype"])
    return keys, values


def drawn(random: torch.Generator, dtype: torch.dtype, *size: int) -> torch.Tensor:
    return (0.2 * torch.randn(*size, generator=random)).to(dtype)


def panels(
    random: torch.Generator, dtype: torch.dtype, outer: int, inner: int, *, has_bias: bool = False
) -> PanelLinear:
    weight = drawn(random, dtype, outer, inner)
    return in_panels(PlainLinear(weight, drawn(random, dtype, outer) if has_bias else None))


def gated_weights(random: torch.Generator, dtype: torch.dtype, hidden: int, inner: int) -> GatedWeights:
    return GatedWeights(panels(random, dtype, 2 * inner, hidden), panels(random, dtype, hidden, inner))


def experts_weights(
    random: torch.Generator, dtype: torch.dtype, hidden: int, *, experts: int, per_row: int, is_shared: bool
) -> ExpertsWeights:
    """Some of the experts are liked as much as others; weights are made to sum to one where an expert is shared."""
    liked = drawn(random, dtype, -(-experts // 2), hidden)
    router = in_panels(PlainLinear(20 * torch.cat([liked, liked])[:experts]))
    shared = SharedExpert(gated_weights(random, dtype, hidden, 24), panels(random, dtype, 1, hidden))
    made = [gated_weights(random, dtype, hidden, 16) for _ in range(experts)]
    return ExpertsWeights(router, made, min(per_row, experts), is_shared, shared if is_shared else None)


def attention_weights(step: dict[str, Any], hidden: int, *, has_norms: bool, has_bias: bool) -> AttentionWeights:
    random, dim, dtype, width = step["random"], step["dim"], step["dtype"], step["heads"] * step["dim"]
    query, key, first, second = (1 + drawn(random, dtype, size) for size in (dim, dim, hidden, hidden))
    joined = width + 2 * step["kv_heads"] * dim
    return AttentionWeights(
        first,
        panels(random, dtype, joined, hidden, has_bias=has_bias),
        HeadNorms(query, key, 1e-6) if has_norms else None,
        panels(random, dtype, hidden, width),
        second,
        heads=step["heads"],
        eps=1e-5,
        scale=dim**-0.5,
    )
