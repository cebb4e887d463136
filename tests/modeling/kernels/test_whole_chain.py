"""Decoders one behind another in one call against the plain loop over them, and rows beside others against rows alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omnistage.modeling.attention import CacheShape, PagedCache
from omnistage.modeling.drawing import DRAW_SETTINGS
from omnistage.modeling.kernels.blocks import ChainWeights, DecoderWeights, GatedWeights, LayerWeights
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.kernels.native import KernelOps
from omnistage.modeling.mlp import GatedMlp
from omnistage.modeling.rotary import RotationCache
from omnistage.modeling.step import BlockTable, StepRows
from tests.modeling.kernels.steps import attention_weights, drawn, panels, quick
from tests.modeling.kernels.steps import threads as threads

CPU = torch.device("cpu")
HIDDEN, VOCAB, DIM, BLOCK = 32, 41, 16, 16
ROTATIONS = RotationCache(DIM, 10000.0, CPU).reaching(BLOCK)


def chain_of(count: int, dtype: torch.dtype, seed: int) -> ChainWeights:
    """`count` decoders that share their layers."""
    random = torch.Generator().manual_seed(seed)
    step = {"random": random, "dtype": dtype, "dim": DIM, "heads": 4, "kv_heads": 2}
    layers = [
        LayerWeights(
            attention_weights(step, HIDDEN, has_norms=True, has_bias=False),
            GatedMlp(GatedWeights(panels(random, dtype, 64, HIDDEN), panels(random, dtype, HIDDEN, 32))),
        )
        for _ in range(2)
    ]
    norm = 1 + drawn(random, dtype, HIDDEN)
    return ChainWeights(
        [
            DecoderWeights(
                drawn(random, dtype, VOCAB, HIDDEN), layers, norm, panels(random, dtype, VOCAB, HIDDEN), 1e-5
            )
            for _ in range(count)
        ]
    )


def begun(embeds: torch.Tensor, counts: list[int]) -> StepRows:
    table = BlockTable.of([[place] for place in range(len(counts))])
    last = [sum(counts[: place + 1]) - 1 for place in range(len(counts))]
    step = StepRows(table, range(len(counts)), [0] * len(counts), counts, BLOCK, CPU, (), last)
    step.embeds = embeds
    return step


def cache_of(rows: int, dtype: torch.dtype) -> PagedCache:
    return PagedCache(CacheShape(2, 2, DIM, BLOCK, dtype, CPU), rows)


def run(
    ops: TorchOps,
    chain: ChainWeights,
    embeds: torch.Tensor,
    counts: list[int],
    asked: npt.NDArray[np.void] | None,
    loop: Any = None,
) -> list[list[int]]:
    found: list[list[int]] = (loop or type(ops).chain)(
        ops, chain, begun(embeds, counts), ROTATIONS, cache_of(len(counts), embeds.dtype), asked
    )
    return found


@given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=9),
    links=st.integers(1, 5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**20),
    drawn_with=st.lists(st.sampled_from([0.0, 0.7, 1.0]), min_size=9, max_size=9),
)
@quick
def test_a_chain_is_its_decoders(
    kernels: KernelOps, counts: list[int], links: int, dtype: torch.dtype, seed: int, drawn_with: list[float]
) -> None:
    """Fault: a link at the wrong position, with the table of another, or with another row's token or chance."""
    chain = chain_of(links, dtype, seed)
    chance = np.random.default_rng(seed)
    asked = np.zeros((links, len(counts)), DRAW_SETTINGS)
    asked["temperature"], asked["top_p"], asked["top_k"] = drawn_with[: len(counts)], 0.8, 20
    asked["chance"] = chance.random(asked.shape)
    embeds = drawn(torch.Generator().manual_seed(seed), dtype, sum(counts), HIDDEN) * 5
    whole = run(kernels, chain, embeds, counts, asked)
    assert whole == run(kernels, chain, embeds, counts, asked, TorchOps.chain)
    place = seed % len(counts)
    start = sum(counts[:place])
    alone = run(
        kernels, chain, embeds[start : start + counts[place]], [counts[place]], np.ascontiguousarray(asked[:, [place]])
    )
    assert [tokens[place] for tokens in whole] == [tokens[0] for tokens in alone]


def test_the_best_of_every_link_without_settings(kernels: KernelOps) -> None:
    """Fault: a missing table of settings is read."""
    chain, embeds = chain_of(4, torch.float32, 1), torch.randn(6, HIDDEN, generator=torch.Generator().manual_seed(1))
    assert run(kernels, chain, embeds, [2, 2, 2], None) == run(TorchOps(), chain, embeds, [2, 2, 2], None)


def test_a_row_that_is_not_finite_says_so_and_harms_no_other(kernels: KernelOps) -> None:
    """Fault: token -1 is looked up in a table, in memory that is not the table's."""
    chain, embeds = chain_of(3, torch.float32, 2), torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(2))
    alone = run(kernels, chain, embeds[2:], [2], None)
    embeds[0] = float("nan")
    for ops in (kernels, TorchOps()):
        found = run(ops, chain, embeds, [2, 2], None)
        assert found[0][0] == -1
        assert [tokens[1] for tokens in found] == [tokens[0] for tokens in alone]


@pytest.mark.parametrize("rows", [VOCAB - 1, VOCAB + 1])
def test_a_link_whose_table_is_not_as_long_as_the_heads_is_left_to_torch(kernels: KernelOps, rows: int) -> None:
    """Fault: a token is looked up in a table that does not have it: torch says so, a kernel would not."""
    chain = chain_of(2, torch.float32, 3)
    second = chain.links[1]
    other = DecoderWeights(torch.zeros(rows, HIDDEN), second.layers, second.final_norm, second.head, second.eps)
    assert kernels._bound_chain(ChainWeights([chain.links[0], other]), cache_of(1, torch.float32)) is None
