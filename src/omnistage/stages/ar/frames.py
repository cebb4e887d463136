"""What a sequence keeps whose tokens are the first codes of frames: the whole frames, and a number that comes in beside each.

A framed model (see `modeling.protocols.FramedModel`) is fed the frame that it made last and one number more, its side: a text token
that a source writes in the meantime, say. A step waits for the side that it needs until every source has ended; from then on the
missing ones are `pad`. All of it is plain ints: where a sequence is computed again, its input rows are made of them again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import msgspec

from omnistage.core.spec import TensorSpec


class FedFrame(NamedTuple):
    """What one position behind the prompt is computed from."""

    codes: tuple[int, ...]
    side: int


class FrameSource(msgspec.Struct, frozen=True):
    """A frame on its way out, int32 [1, groups]: ints until it is copied, for many frames leave together and later."""

    codes: tuple[int, ...]

    @property
    def spec(self) -> TensorSpec:
        return _spec(len(self.codes))

    def copy_to(self, view: memoryview) -> None:
        struct.pack_into(f"<{len(self.codes)}i", view, 0, *self.codes)


@cache
def _spec(groups: int) -> TensorSpec:
    return TensorSpec("int32", (1, groups))


@dataclass(slots=True)
class FrameState:
    """Of one sequence. Frame s belongs to output token s, and is fed with side s."""

    pad: int
    has_all_sides: bool = False
    frames: list[tuple[int, ...]] = field(default_factory=list)
    sides: list[int] = field(default_factory=list)

    @property
    def num_ready(self) -> int:
        """How many frames, from the first on, can be fed."""
        made = len(self.frames)
        return made if self.has_all_sides else min(made, len(self.sides))

    def supply(self, sides: Sequence[int], *, all_there: bool) -> None:
        self.sides.extend(sides)
        self.has_all_sides = self.has_all_sides or all_there

    def fed(self, first: int, end: int) -> tuple[FedFrame, ...]:
        """What the output tokens [first, end) are fed as."""
        known = len(self.sides)
        places = range(max(0, first), end)
        return tuple(FedFrame(self.frames[s], self.sides[s] if s < known else self.pad) for s in places)
