"""Captured rows under the digests of their blocks: gathered step by step, handed out again without what was handed on before."""

from __future__ import annotations

import torch

from omnistage.stages.ar.captured import CapturedRows
from omnistage.stages.ar.plan import HeldBlock, PlanRow, SequenceKey, Span
from omnistage.stages.ar.sequence import SequenceState

KEY = SequenceKey("a", 0)
ROWS = torch.arange(24.0).view(12, 2)
"""Of position p the row p."""


def sequence(*outputs_at: Span) -> SequenceState:
    made = SequenceState(KEY, (0, 0, 0), list(range(12)), 20, capture=True, outputs_at=outputs_at)
    made.digests = [b"0", b"1", b"2"]
    return made


def compute(rows: CapturedRows, of: SequenceState, start: int, end: int) -> None:
    captures = of.wanted(start, end)
    row = PlanRow(KEY, 0, start, tuple(range(start, end)), 0, (), samples=False, captures=captures)
    rows.grow(of, row, {3: torch.cat([ROWS[first:last] for first, last in captures])} if captures else {})


def test_rows_are_held_when_their_block_is_full() -> None:
    """Fault: rows of half a block are taken for all of it; those that came in two steps are held in the wrong order."""
    rows, one = CapturedRows(4), sequence((1, 3), (6, 9))
    compute(rows, one, 0, 2)
    assert not rows.holds(b"0", ((1, 3),))
    compute(rows, one, 2, 7)
    assert rows.holds(b"0", ((1, 3),))
    assert not rows.holds(b"0", ((1, 2),))
    assert not rows.holds(b"1", ((6, 8),))
    compute(rows, one, 7, 9)
    compute(rows, one, 9, 12)  # nothing is wanted of it, but it fills the last block
    blocks = [
        HeldBlock(b"0", ((1, 3),), ((2, 3),), 1),
        HeldBlock(b"1", ((6, 8),), ((6, 8),)),
        HeldBlock(b"2", ((8, 9),), ((8, 9),)),
    ]
    assert torch.equal(rows.recall(blocks)[3], ROWS[[2, 6, 7, 8]])
    rows.clear()
    assert not rows.holds(b"1", ((6, 8),))


def test_what_was_not_computed_whole_is_not_held() -> None:
    """Fault: a block whose first rows came from elsewhere is held without them; a request leaves rows behind."""
    rows, one = CapturedRows(4), sequence((0, 8))
    compute(rows, one, 2, 8)
    assert not rows.holds(b"0", ((0, 4),))
    assert rows.holds(b"1", ((4, 8),))
    compute(rows, one, 8, 9)
    other = sequence((8, 12))
    compute(rows, other, 8, 10)
    rows.forget(KEY)
    compute(rows, other, 10, 12)
    assert not rows.holds(b"2", ((8, 12),))


def test_bytes_are_bounded() -> None:
    """Fault: rows of every prompt stay for ever."""
    rows, one = CapturedRows(4, limit_nbytes=2 * 4 * 4), sequence((0, 12))
    compute(rows, one, 0, 12)
    assert [rows.holds(digest, ((at, at + 4),)) for digest, at in ((b"0", 0), (b"1", 4), (b"2", 8))] == [
        False,
        False,
        True,
    ]
