"""What a sequence's rows are made of where its tokens do not tell: input embeddings, additions between layers, rotary positions.

Positions count a sequence's tokens from 0. Knows no scheduling.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import cast

import torch

from omnistage.modeling.protocols import ARModel, PositionedModel
from omnistage.modeling.step import StepRows
from omnistage.stages.ar.plan import PlanRow, SequenceKey


@dataclass(frozen=True, slots=True)
class Piece:
    """`rows` [n, hidden] begin the positions from `start` on; `layered` [K, n, hidden] is added to what the first K layers make."""

    start: int
    rows: torch.Tensor
    layered: torch.Tensor | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.rows)

    def part(self, start: int, end: int) -> torch.Tensor:
        """Its rows of the positions [start, end)."""
        return self.rows[max(0, start - self.start) : max(0, end - self.start)]


@dataclass(slots=True)
class OwnRows:
    """Of one sequence. `rotary` [n, D] turns its first `turned` positions; what follows stands from `next_position` on, on all
    axes. `end` is the first position behind all pieces."""

    pieces: list[Piece] = field(default_factory=list)
    end: int = 0
    rotary: torch.Tensor | None = None
    turned: int = 0
    next_position: int = 0

    def add(self, *pieces: Piece) -> None:
        """A position is in one piece at most."""
        for piece in pieces:
            insort(self.pieces, piece, key=_start)
            self.end = max(self.end, piece.end)

    def turn(self, rotary: torch.Tensor, next_position: int) -> None:
        """The rotations of its next positions."""
        self.rotary = rotary if self.rotary is None else torch.cat([self.rotary, rotary])
        self.turned, self.next_position = len(self.rotary), next_position

    def touched(self, start: int, end: int) -> list[Piece]:
        """The pieces of the positions [start, end)."""
        first = max(0, bisect_right(self.pieces, start, key=_start) - 1)
        found = []
        for piece in self.pieces[first:]:
            if piece.start >= end:
                break
            if piece.end > start:
                found.append(piece)
        return found

    def positions(self, start: int, end: int) -> range:
        """Of the tokens [start, end) as if all stood behind those that `rotary` turns; their places where it turns none."""
        shift = self.next_position - self.turned
        return range(start + shift, end + shift)


def fill(step: StepRows, rows: Sequence[PlanRow], own: Mapping[SequenceKey, OwnRows], model: ARModel) -> None:
    """Gives a step of `rows` the embeddings and additions that some of them have."""
    placed = [(row, own[row.key], at) for row, at in zip(rows, step.q_start, strict=False) if row.key in own]
    touched = [(row, found, at) for row, found, at in placed if row.start < found.end]
    if not touched:
        return
    embeds, layered = model.embed(step.token_ids), dict[int, torch.Tensor]()
    for row, found, at in touched:
        for piece in found.touched(row.start, row.end):
            _put(piece, row, at, embeds, layered)
    step.embeds, step.layered = embeds, layered


def turn(step: StepRows, rows: Sequence[PlanRow], own: Mapping[SequenceKey, OwnRows], model: ARModel) -> None:
    """Gives a step of `rows` its rotations, where some of them stand elsewhere than their places say."""
    plain = OwnRows()
    found = [own.get(row.key, plain) for row in rows]
    if not any(one.turned for one in found):
        return
    spans = zip(found, rows, strict=True)
    positions = chain.from_iterable(one.positions(row.start, row.end) for one, row in spans)
    positioned = cast("PositionedModel", model)  # only of such a model rotations are held; to look costs in every step
    made = positioned.rotations(torch.tensor(list(positions), device=step.device).clamp_(min=0))
    for one, row, at in zip(found, rows, step.q_start, strict=False):
        if row.start < one.turned and one.rotary is not None:
            turned = one.rotary[row.start : row.end]
            made[at : at + len(turned)] = turned
    step.rotary = made


def _put(piece: Piece, row: PlanRow, at: int, embeds: torch.Tensor, layered: dict[int, torch.Tensor]) -> None:
    """`at`: the place of the row's first position among the step's rows."""
    first, last = max(piece.start, row.start), min(piece.end, row.end)
    to, of = slice(at + first - row.start, at + last - row.start), slice(first - piece.start, last - piece.start)
    embeds[to] = piece.part(row.start, row.end)
    for layer, more in enumerate(() if piece.layered is None else piece.layered):
        if layer not in layered:
            layered[layer] = torch.zeros_like(embeds)
        layered[layer][to] = more[of]


def _start(piece: Piece) -> int:
    return piece.start
