"""What the scheduler tells the runner: values without tensors, which could travel to other ranks as they are.

Positions count a sequence's tokens from 0, prompt first. A sequence is one choice of one request.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from omnistage.stages.ar.frames import FedFrame


class SequenceKey(NamedTuple):
    """Choice 0 .. n-1 of a request."""

    request_id: str
    choice: int


Span = tuple[int, int]
"""Positions [start, end)."""


class HeldBlock(msgspec.Struct, frozen=True):
    """A full block that is shared instead of computed, whose captured rows are held under its digest: those of `spans`. Of them
    those of `wanted`, the last, are handed on; `skip` rows were before."""

    digest: bytes
    spans: tuple[Span, ...]
    wanted: tuple[Span, ...]
    skip: int = 0


class PlanRow(msgspec.Struct, frozen=True):
    """What one sequence computes in one step: `tokens` at the positions from `start` on.

    `slot` is its row of the block table; `blocks` are written there from column `first_block` on (a sequence that was given
    a new slot lists all of its blocks). `samples`: the last token's logits are wanted. `captures`: hidden states of
    these positions, which it computes, are wanted; and those of the positions before it that `recalled` blocks hold. `frames`: what
    the last positions are computed from in place of tokens.
    """

    key: SequenceKey
    slot: int
    start: int
    tokens: tuple[int, ...]
    first_block: int
    blocks: tuple[int, ...]
    samples: bool
    captures: tuple[Span, ...] = ()
    recalled: tuple[HeldBlock, ...] = ()
    frames: tuple[FedFrame, ...] = ()

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class StepPlan(msgspec.Struct, frozen=True):
    """One step: its rows, decodes first. `preempted` lost their blocks and slot; they will be computed again."""

    rows: tuple[PlanRow, ...] = ()
    preempted: tuple[SequenceKey, ...] = ()

    def alone(self) -> list[StepPlan]:
        """The same work, one row at a time."""
        return [StepPlan((row,)) for row in self.rows]
