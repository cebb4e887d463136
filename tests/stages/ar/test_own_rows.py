"""Rows that tokens do not tell: pieces of embeddings and additions at their places, rotations of rows beside those of places."""

from __future__ import annotations

from typing import Any

import torch

from omnistage.modeling.step import BlockTable, StepRows
from omnistage.stages.ar.own_rows import OwnRows, Piece, fill, turn
from omnistage.stages.ar.plan import PlanRow, SequenceKey

A, B = SequenceKey("a", 0), SequenceKey("b", 0)


class Model:
    """Embeds a token as its number, and turns a position by itself."""

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return token_ids[:, None].float().repeat(1, 2)

    def rotations(self, positions: torch.Tensor) -> torch.Tensor:
        return positions.float()[:, None]


def filled(own: dict[SequenceKey, OwnRows], *spans: tuple[SequenceKey, int, int]) -> StepRows:
    """A step over positions of sequences, whose tokens are 100 and their positions."""
    rows = [
        PlanRow(key, 0, start, tuple(range(100 + start, 100 + end)), 0, (), samples=False) for key, start, end in spans
    ]
    step = StepRows(
        BlockTable.of([[1]]),
        [0] * len(rows),
        [row.start for row in rows],
        [len(row.tokens) for row in rows],
        16,
        torch.device("cpu"),
        [token for row in rows for token in row.tokens],
    )
    model: Any = Model()
    fill(step, rows, own, model)
    turn(step, rows, own, model)
    return step


def test_pieces_fill_their_places_in_any_cut() -> None:
    """Fault: a row of a picture stands one place beside its own, or is lost over a chunk's border; a neighbour gets it."""
    own = OwnRows()
    own.add(Piece(7, torch.full((2, 2), 7.0)), Piece(2, torch.tensor([[2.0, 2], [3, 3]]), torch.ones(1, 2, 2)))
    assert own.end == 9
    whole = filled({A: own}, (B, 0, 2), (A, 0, 9))
    assert whole.embeds is not None
    assert whole.embeds[:, 0].tolist() == [100, 101, 100, 101, 2, 3, 104, 105, 106, 7, 7]
    assert whole.layered[0][:, 0].tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
    for start in range(9):
        part = filled({A: own}, (A, start, start + 1))
        assert part.embeds is not None
        assert torch.equal(part.embeds[0], whole.embeds[2 + start])
    behind = filled({A: own}, (A, 9, 10))
    assert (behind.embeds, behind.layered, behind.rotary) == (None, {}, None)


def test_rotations_are_those_of_rows_then_of_what_follows_then_of_places() -> None:
    """Fault: what is generated stands where it would without pictures; a neighbour without positions is turned by others'."""
    own = OwnRows()
    own.turn(torch.tensor([[50.0], [51.0]]), 0)
    own.turn(torch.tensor([[52.0]]), 4)
    other = OwnRows()
    other.add(Piece(0, torch.zeros(1, 2)))
    step = filled({A: own, B: other}, (A, 1, 6), (B, 7, 9), (A, 9, 10))
    assert step.rotary is not None
    assert step.rotary[:, 0].tolist() == [51, 52, 4, 5, 6, 7, 8, 10]
