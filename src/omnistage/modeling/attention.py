"""Paged keys and values, and the one attention operation over them: decode, chunked prefill and mixed steps alike.

Keys and values of a layer are two tensors [num_blocks, Hkv, block, D]; block 0 is the null block. A step is flattened: T rows of
all its sequences, one behind the other. `paged_attention` writes the rows' keys and values, then lets each row attend to
what its sequence holds up to and including itself. It is the slow, obvious form in plain torch; modeling.kernels has a fast one.
Knows nothing of models, requests or sampling.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

_NUMPY_TWIN = {torch.float32: np.dtype(np.float32), torch.float16: np.dtype(np.float16)}


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
    twin = _NUMPY_TWIN.get(shape.dtype, np.dtype(np.uint16 if shape.dtype.itemsize == 2 else np.float64))
    return torch.from_numpy(np.zeros(size, twin)).view(shape.dtype)  # calloc: pages appear as they are touched


@dataclass(frozen=True, slots=True)
class StepMeta:
    """Where the T rows of a step belong. One per step; all layers share it.

    `slot` [T]: block * block_size + offset at which a row's keys and values are written. `block_table` [slots, max_blocks]
    int32. `row` [T]: row of the block table; `kv_len` [T]: keys that a row may see. Per sequence of the step: `table_rows`,
    `q_start` (one more than sequences) and `seq_len` (keys after the step). `scratch` and `bound` keep what layers share.
    """

    slot: torch.Tensor
    block_table: torch.Tensor
    row: torch.Tensor
    kv_len: torch.Tensor
    table_rows: tuple[int, ...]
    q_start: tuple[int, ...]
    seq_len: tuple[int, ...]
    block_size: int
    scratch: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor | None, int]] = field(default_factory=dict)
    bound: list[Any] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        table: npt.NDArray[np.int32],
        table_rows: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        block_size: int,
        device: torch.device,
    ) -> tuple[StepMeta, torch.Tensor]:
        """Sequence i computes `counts[i]` rows from position `starts[i]` on; also gives the positions [T]."""
        ends = counts.cumsum()
        if ends[-1] == len(counts):  # a row each, as in most steps
            row, positions = table_rows, starts
        else:
            row = np.repeat(table_rows, counts)
            positions = np.arange(int(ends[-1])) - np.repeat(ends - counts - starts, counts)
        slot = table[row, positions // block_size] * np.int64(block_size) + positions % block_size
        meta = cls(
            slot=tensor_on(slot, device),
            block_table=tensor_on(table, device),
            row=tensor_on(row.astype(np.int32), device),
            kv_len=tensor_on((positions + 1).astype(np.int32), device),
            table_rows=tuple(table_rows.tolist()),
            q_start=(0, *ends.tolist()),
            seq_len=tuple((starts + counts).tolist()),
            block_size=block_size,
        )
        return meta, tensor_on(positions, device)


def tensor_on(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """On a CPU the same memory."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.to(device)


def paged_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    meta: StepMeta,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """`q` [T, H, D], `k` and `v` [T, Hkv, D] -> [T, H, D]. Row t attends to its sequence's keys 0 .. kv_len[t] - 1, with a
    `window` to the last `window` of them. Sequences are computed one by one, so neighbours cannot change a result."""
    block, offset = meta.slot // meta.block_size, meta.slot % meta.block_size
    key_cache[block, :, offset] = k
    value_cache[block, :, offset] = v
    out = torch.empty_like(q)
    for index in range(len(meta.table_rows)):
        start, end = meta.q_start[index], meta.q_start[index + 1]
        blocks, mask, num_keys = _visible(meta, index, window)
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


def _visible(meta: StepMeta, index: int, window: int) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    """Blocks that sequence `index` of the step looks into, the mask over their keys (None: plainly causal, or all), and
    how many keys there are. Worked out once a step and window."""
    found = meta.scratch.get((index, window))
    if found is None:
        found = meta.scratch[index, window] = _look(meta, index, window)
    return found


def _look(meta: StepMeta, index: int, window: int) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    length = meta.seq_len[index]
    rows = meta.q_start[index + 1] - meta.q_start[index]
    first_query = length - rows
    first_key = max(0, first_query - window + 1) if window else 0
    first_block, num_blocks = first_key // meta.block_size, -(-length // meta.block_size)
    blocks = meta.block_table[meta.table_rows[index], first_block:num_blocks].long()
    origin = first_block * meta.block_size
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
