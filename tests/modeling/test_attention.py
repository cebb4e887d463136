"""The paged operation against plain attention over whole sequences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from omnistage.modeling.attention import CacheShape, PagedCache
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.paged_attend import PagedAttend
from omnistage.modeling.step import BlockTable, StepRows

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 8, 4
SHAPE = CacheShape(1, KV_HEADS, DIM, BLOCK, torch.float32, torch.device("cpu"))
LENGTHS = [13, 1, 22, 8]


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """[n, heads, D] of one whole sequence, by the definition."""
    k, v = (rows.repeat_interleave(HEADS // KV_HEADS, dim=1) for rows in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * DIM**-0.5
    place = torch.arange(len(q))
    hidden = place[None] > place[:, None]
    if window:
        hidden |= place[None] <= place[:, None] - window
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def paged(sequences: list[tuple[torch.Tensor, ...]], cuts: list[list[int]], window: int) -> list[torch.Tensor]:
    """Computes the sequences step by step: `cuts[s]` are the rows of every sequence in step s."""
    num_blocks = 8 * len(sequences)
    table = BlockTable.of(np.random.default_rng(0).permutation(np.arange(1, 1 + num_blocks)).reshape(-1, 8).tolist())
    cache = PagedCache(SHAPE, num_blocks + 1)
    for kept in (*cache.keys, *cache.values):
        kept.fill_(torch.nan)  # what was not written must not be read
    done = [0] * len(sequences)
    out: list[list[torch.Tensor]] = [[] for _ in sequences]
    for counts in cuts:
        rows = [index for index, count in enumerate(counts) if count]
        starts, each = [done[index] for index in rows], [counts[index] for index in rows]
        step = StepRows(table, rows, starts, each, BLOCK, torch.device("cpu"))
        flat = [
            torch.cat([sequences[index][part][done[index] : done[index] + counts[index]] for index in rows])
            for part in range(3)
        ]
        found = PagedAttend(cache, step, TorchOps())(0, *flat, scale=DIM**-0.5, window=window)
        for index, piece in zip(rows, found.split(each), strict=True):
            out[index].append(piece)
            done[index] += counts[index]
    return [torch.cat(pieces) for pieces in out]


def sequences(lengths: list[int]) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    return [
        tuple(torch.randn(length, heads, DIM, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS))
        for length in lengths
    ]


CUTS = {
    "whole": [LENGTHS],
    "chunks": [[5, 1, 3, 8], [5, 0, 9, 0], [3, 0, 10, 0]],
    "decode": [[11, 0, 20, 7], [1, 1, 1, 1], [1, 0, 1, 0]],
}


@pytest.mark.parametrize("window", [0, 3, 5, 100])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS.keys())
def test_any_cut_is_plain_attention(cuts: list[list[int]], window: int) -> None:
    """Fault: masks over chunks, windows over block borders, head groups, blocks of another sequence."""
    given = sequences(LENGTHS)
    for found, (q, k, v) in zip(paged(given, cuts, window), given, strict=True):
        assert torch.allclose(found, plain(q, k, v, window), atol=1e-5)


def test_a_sequence_does_not_depend_on_its_neighbours() -> None:
    """Fault: results that change by rounding with who else is in the step."""
    given = sequences(LENGTHS)
    together = paged(given, CUTS["decode"], 0)
    alone = paged(given[:1], [[11], [1], [1]], 0)
    assert torch.equal(together[0], alone[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_cache_is_zero_and_counts_its_bytes(dtype: torch.dtype) -> None:
    """Fault: a block's size in bytes is wrong, so that kv_cache_bytes is not kept."""
    shape = CacheShape(3, KV_HEADS, DIM, BLOCK, dtype, torch.device("cpu"))
    cache = PagedCache(shape, 5)
    kept = [*cache.keys, *cache.values]
    assert sum(one.nbytes for one in kept) == 5 * shape.block_nbytes
    assert all(one.dtype == dtype and not one.any() for one in kept)
    assert all(one.data_ptr() % 64 == 0 for one in kept)  # else every vector of a kernel lies in two cache lines
