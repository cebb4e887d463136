"""Paged keys and values, and the one attention operation over them: decode, chunked prefill and mixed steps alike.

Keys and values of a layer are two tensors [num_blocks, Hkv, block, D]; block 0 is the null block. `paged_attention` writes the
keys and values of a step's rows, then lets each row attend to what its sequence holds up to and including itself. It is the slow,
obvious form in plain torch; modeling.kernels has a fast one.
Knows nothing of models, requests or sampling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from omnistage.modeling.step import StepRows

_LINE_NBYTES = 64


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The layout of a cache; all layers are alike."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    device: torch.device

    @property
    def block_nbytes(self) -> int:
        """Keys and values of one block, all layers together."""
        rows = self.num_layers * self.num_kv_heads * self.block_size
        return 2 * rows * self.head_dim * self.dtype.itemsize


class PagedCache:
    """Keys and values of all layers. On a CPU its pages are zero and take no memory until they are written."""

    def __init__(self, shape: CacheShape, num_blocks: int) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        size = (num_blocks, shape.num_kv_heads, shape.block_size, shape.head_dim)
        self.keys = [_lazy_zeros(size, shape) for _ in range(shape.num_layers)]
        self.values = [_lazy_zeros(size, shape) for _ in range(shape.num_layers)]


def _lazy_zeros(size: tuple[int, ...], shape: CacheShape) -> torch.Tensor:
    if shape.device.type != "cpu":
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)
    nbytes = math.prod(size) * shape.dtype.itemsize
    memory = np.zeros(nbytes + _LINE_NBYTES, np.uint8)  # calloc: pages appear as they are touched
    start = -memory.ctypes.data % _LINE_NBYTES  # a vector that begins between two cache lines is two reads
    return torch.from_numpy(memory[start : start + nbytes]).view(shape.dtype).view(size)


def paged_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    step: StepRows,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """`q` [T, H, D], `k` and `v` [T, Hkv, D] -> [T, H, D]. A row attends to its sequence's keys up to its own position, with a
    `window` to the last `window` of them. Sequences are computed one by one, so neighbours cannot change a result."""
    block, offset = step.cache_places
    key_cache[block, :, offset] = k
    value_cache[block, :, offset] = v
    out = torch.empty_like(q)
    for index in range(len(step.slots)):
        start, end = step.q_start[index], step.q_start[index + 1]
        blocks, mask, num_keys = _visible(step, index, window)
        keys = _gather(key_cache, blocks, num_keys)
        values = _gather(value_cache, blocks, num_keys)
        out[start:end] = _attend_one(q[start:end], keys, values, mask, scale)
    return out


def _gather(cache: torch.Tensor, blocks: torch.Tensor, num_keys: int) -> torch.Tensor:
    """The first `num_keys` rows of a sequence's blocks, [1, Hkv, num_keys, D]."""
    picked = cache.index_select(0, blocks)  # [n, Hkv, block, D]
    heads = picked.transpose(0, 1).reshape(cache.shape[1], -1, cache.shape[3])
    return heads[None, :, :num_keys]


def _attend_one(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """One sequence: `q` [n, H, D], keys and values [1, Hkv, m, D], `mask` [n, m] or None -> [n, H, D]."""
    rows, heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    if rows == 1:  # the queries that share a key head are the rows of one small product
        grouped = q.reshape(1, kv_heads, heads // kv_heads, head_dim)
        found = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
        return found.reshape(1, heads, head_dim)
    found = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=heads != kv_heads,
    )
    return found[0].transpose(0, 1)


def _visible(step: StepRows, index: int, window: int) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    """Blocks that sequence `index` of the step looks into, the mask over their keys (None: plainly causal, or all), and
    how many keys there are. Worked out once a step and window."""
    found = step.scratch.get((index, window))
    if found is None:
        found = step.scratch[index, window] = _look(step, index, window)
    return found


def _look(step: StepRows, index: int, window: int) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    rows = step.counts[index]
    first_query = step.starts[index]
    length = first_query + rows
    first_key = max(0, first_query - window + 1) if window else 0
    first_block, num_blocks = first_key // step.block_size, -(-length // step.block_size)
    blocks = step.block_table[step.slots[index], first_block:num_blocks].long()
    origin = first_block * step.block_size
    num_keys = length - origin
    is_whole = num_keys == rows  # the whole sequence is computed in this step
    reaches_all = not window or length <= window
    if reaches_all and (rows == 1 or is_whole):
        return blocks, None, num_keys
    queries = torch.arange(first_query, length, device=blocks.device)[:, None]
    keys = torch.arange(origin, length, device=blocks.device)[None]
    mask = keys <= queries
    if window:
        mask &= keys > queries - window
    return blocks, mask, num_keys
