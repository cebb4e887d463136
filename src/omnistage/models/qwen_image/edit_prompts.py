"""A prompt with pictures: which words stand around it, and where its tokens and the rows of its pictures stand. Knows no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omnistage.core.errors import InvalidRequestError
from omnistage.models.qwen_image.prompts import Ids, Template
from omnistage.models.qwen_image.settings import Grid

_CHANGING = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, background), then "
    "explain how the user's text instruction should alter or modify the image. Generate a new image that meets the user's "
    "requirements while maintaining consistency with the original input where appropriate.<|im_end|>\n<|im_start|>user\n"
)
_PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"


@dataclass(frozen=True, slots=True)
class Editing:
    """What an edit pipeline does with its pictures: one to `most` of them, of which the text encoder sees `seen_area` pixels (None:
    as many as the autoencoder)."""

    template: Template
    most: int
    seen_area: int | None


EDIT = Editing(Template(_CHANGING, 64, _PICTURE), most=1, seen_area=None)
EDIT_PLUS = Editing(Template(_CHANGING, 64, f"Picture {{}}: {_PICTURE}"), most=8, seen_area=384 * 384)


def expanded(ids: Ids, grids: Sequence[Grid], picture_token: int, field: str) -> tuple[Ids, npt.NDArray[np.int32]]:
    """`ids` with one `picture_token` for each picture -> ids with one for each of its rows, which lie on `grids`, and positions [3,
    length]: temporal, height, width. A picture begins where the text before it ends; the text goes on behind its longer side."""
    places = np.flatnonzero(ids == picture_token).tolist()
    if len(places) != len(grids):
        told = f"a text with {len(places) - len(grids)} tokens that stand for pictures"
        raise InvalidRequestError.of(field, told, "a text without such tokens: pictures come beside it")
    parts: list[Ids] = []
    positions: list[npt.NDArray[np.int32]] = []
    start = at = 0
    for place, (tall, wide) in zip(places, grids, strict=True):
        parts += [ids[at:place], np.full(tall * wide, picture_token, np.int32)]
        positions.append(_line(start, place - at))
        start += place - at
        positions.append(start + np.indices((1, tall, wide), np.int32).reshape(3, -1))
        start += max(tall, wide)
        at = place + 1
    parts.append(ids[at:])
    positions.append(_line(start, len(ids) - at))
    return np.concatenate(parts), np.concatenate(positions, axis=1).astype(np.int32)


def _line(start: int, length: int) -> npt.NDArray[np.int32]:
    """[3, length]: a text, which counts on by one on all three axes."""
    return np.tile(np.arange(start, start + length, dtype=np.int32), (3, 1))
