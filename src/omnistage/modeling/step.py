"""What goes into one step of a model, and what comes out. A step is flattened: T rows of all its sequences, one behind the other.

Knows nothing of models, requests or sampling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


class BlockTable:
    """Which blocks of the cache hold a sequence's keys and values: `blocks` [slots, columns] int32. It stays where it is."""

    def __init__(self, slots: int, columns: int) -> None:
        self.blocks: npt.NDArray[np.int32] = np.zeros((slots, columns), np.int32)
        self.address: int = self.blocks.ctypes.data
        self.columns = columns

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> BlockTable:
        made = cls(len(rows), len(rows[0]))
        made.blocks[:] = rows
        return made


@dataclass(eq=False)
class StepRows:
    """Sequence i computes `counts[i]` rows at its positions from `starts[i]` on; its blocks are row `slots[i]` of the table.

    A model begins with `tokens` [T], or with `embeds` [T, hidden] instead; `layered[i]` [T, hidden] is added to what layer i makes.
    `rotary` [T, D], contiguous float32, turns the rows where their places in the sequence do not tell how (`PositionedModel`).
    `logit_rows` are the places among the T rows whose logits are wanted. The rest are plain numbers, as a plan has them, and
    kernels read no more: a tensor costs more than a layer of a small model, and is made when somebody asks for it. `scratch` and
    `bound` keep what layers share.
    """

    table: BlockTable
    slots: Sequence[int]
    starts: Sequence[int]
    counts: Sequence[int]
    block_size: int
    device: torch.device
    tokens: Sequence[int] = ()
    logit_rows: Sequence[int] = ()
    embeds: torch.Tensor | None = None
    layered: Mapping[int, torch.Tensor] = field(default_factory=dict)
    rotary: torch.Tensor | None = None
    scratch: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor | None, int]] = field(default_factory=dict)
    bound: list[Any] = field(default_factory=list)

    def following(self, tokens: Sequence[int]) -> StepRows:
        """The step behind this one: every sequence computes one token more, and is asked for its logits."""
        ends = [start + count for start, count in zip(self.starts, self.counts, strict=True)]
        count = len(tokens)
        return StepRows(self.table, self.slots, ends, [1] * count, self.block_size, self.device, tokens, range(count))

    @cached_property
    def num_rows(self) -> int:
        return sum(self.counts)

    @cached_property
    def longest(self) -> int:
        """The most keys that a sequence has after the step."""
        return max(map(int.__add__, self.starts, self.counts))

    @cached_property
    def q_start(self) -> list[int]:
        """The first row of each sequence, and T."""
        return list(accumulate(self.counts, initial=0))

    @cached_property
    def token_ids(self) -> torch.Tensor:
        """[T]"""
        return self._tensor(self.tokens)

    @cached_property
    def positions(self) -> torch.Tensor:
        """[T]: of each row in its sequence."""
        spans = zip(self.starts, self.counts, strict=True)
        return self._tensor(chain.from_iterable(range(start, start + count) for start, count in spans))

    @cached_property
    def asked(self) -> torch.Tensor:
        """`logit_rows` as a tensor [R]."""
        return self._tensor(self.logit_rows)

    @cached_property
    def block_table(self) -> torch.Tensor:
        """[slots, columns] int32; on a CPU the table's own memory."""
        return torch.from_numpy(self.table.blocks).to(self.device)

    @cached_property
    def cache_places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks and offsets [T] at which the rows' keys and values are written."""
        slots = self._tensor(chain.from_iterable(map(repeat, self.slots, self.counts)))
        blocks = self.block_table[slots, self.positions // self.block_size].long()
        return blocks, self.positions % self.block_size

    def _tensor(self, numbers: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(numbers), dtype=torch.int64, device=self.device)


@dataclass(frozen=True, slots=True)
class ARStep:
    """What a forward pass made: `logits` [R, vocab] float32 of the rows asked for, `hidden` [T, hidden] per captured layer.

    The next pass may write its logits over these."""

    logits: torch.Tensor
    hidden: Mapping[int, torch.Tensor]
