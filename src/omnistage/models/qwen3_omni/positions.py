"""Rotary positions of a prompt: time, height and width of every token, [3, L].

Text and sound count on by one on all three axes. The rows of a picture or a video start where the text before them ended and have a
position of their own in time, height and width; the text after them goes on behind the largest. A video whose sound is read with it
is one block in which rows of both stand in the order of their times. Knows no ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows [start, start + rows) of one media item in a prompt. `grid` are its rows in time, height and width, None for a sound;
    `step` the positions from one time to the next. `sounds`: rows of a video's own sound, which stand among its own. `is_marked`:
    the token before it says that media begin, without which a model reads its rows as text."""

    kind: str
    start: int
    grid: tuple[int, int, int] | None = None
    step: int = 0
    sounds: int = 0
    is_marked: bool = True

    @property
    def rows(self) -> int:
        return self.sounds + (0 if self.grid is None else int(np.prod(self.grid)))

    @property
    def is_spoken(self) -> bool:
        """A video with its sound."""
        return self.grid is not None and self.sounds > 0

    def is_sound(self) -> npt.NDArray[np.bool_]:
        """[rows]: which of its rows are of sound. At equal times the picture comes first."""
        if self.grid is None:
            return np.ones(self.sounds, np.bool_)
        times, tall, wide = self.grid
        seen = np.repeat(np.arange(times) * self.step, tall * wide)
        heard = np.arange(self.sounds)
        kinds = np.repeat([False, True], [len(seen), len(heard)])
        return kinds[np.lexsort((kinds, np.concatenate([seen, heard])))]


def rotary_positions(length: int, blocks: Sequence[Block]) -> tuple[Ints, int]:
    """Positions [3, length] and the one of the token that follows. `blocks` in order; those that are no pictures, or unmarked,
    count on like text."""
    made = np.empty((3, length), np.int32)
    at = position = 0
    for block in blocks:
        if block.grid is None or not block.is_marked:
            continue
        ends = position + block.start - at
        made[:, at : block.start] = np.arange(position, ends)
        at = block.start + block.rows
        made[:, block.start : at] = ends + _inside(block)
        position = int(made[:, block.start : at][:, _last_run(block) :].max()) + 1
    made[:, at:] = np.arange(position, position + length - at)
    return made, int(made.max(initial=-1)) + 1


def _inside(block: Block) -> Ints:
    """[3, rows], from 0 on."""
    assert block.grid is not None
    times, tall, wide = block.grid
    seen = np.indices(block.grid, np.int32).reshape(3, -1) * np.array([[block.step], [1], [1]], np.int32)
    if not block.sounds:
        return seen
    made = np.empty((3, times * tall * wide + block.sounds), np.int32)
    sound = block.is_sound()
    made[:, ~sound] = seen
    made[:, sound] = np.arange(block.sounds)
    return made


def _last_run(block: Block) -> int:
    """The first row behind which a spoken video has rows of one kind only: what follows it goes on behind the largest of these."""
    if not block.is_spoken:
        return 0
    sound = block.is_sound()
    return int(np.flatnonzero(sound != sound[-1])[-1]) + 1


def heard_by_talker(blocks: Sequence[Block]) -> list[Block]:
    """The blocks as the talker counts them. It is not told that a video is read with its sound: such a video is text to it, unless
    a picture or a video without sound is still to come; each that it does recognise stands for one of these videos."""
    pictures = sum(block.kind == "image" for block in blocks)
    videos = sum(block.kind == "video" and not block.is_spoken for block in blocks)
    made = []
    for block in blocks:
        recognised = pictures > 0 or videos > 0
        if block.grid is not None and recognised:
            pictures -= block.kind == "image"
            videos -= block.kind == "video"
        if block.grid is None or recognised:
            made.append(block)
    return made
