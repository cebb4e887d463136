"""From pictures to the patches that the vision encoder reads: sizes, colours, order. Pictures are [height, width, 3] uint8.

A row of the prompt is a square of merge_size x merge_size patches; patches stand in the order of rows, and inside a row line by
line. A patch holds its values as [3, temporal_patch_size, patch_size, patch_size]. Knows no files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.modeling.folder import Section

Frames = npt.NDArray[np.uint8]
Grid = tuple[int, int, int]
"""Patches in time, height and width."""

_WIDEST = 200
"""The longer side of a picture is at most so many times the shorter one."""
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True)
class PatchSizes:
    """What a vision encoder has in its weights: sides of a patch in pixels, frames of one, patches on a side of a row's square."""

    patch_size: int
    temporal_patch_size: int
    merge_size: int


@dataclass(frozen=True, slots=True)
class Pixels:
    """How pictures become patches. Sizes in pixels; `least` and `most` bound height x width after resizing; a colour c of 0 to 255
    becomes (c x scale - mean) / std."""

    patch_size: int
    temporal_patch_size: int
    merge_size: int
    least: int
    most: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float

    @property
    def factor(self) -> int:
        """Sides after resizing are multiples of it."""
        return self.patch_size * self.merge_size


def pixels_of(section: Section, sizes: PatchSizes, least: int, most: int) -> Pixels:
    """Of a folder's settings for pictures. Raises BrokenCheckpointError for sizes that are not the encoder's."""
    whose = "the vision encoder"
    return Pixels(
        patch_size=section.same("patch_size", 14, sizes.patch_size, whose),
        temporal_patch_size=section.same("temporal_patch_size", 2, sizes.temporal_patch_size, whose),
        merge_size=section.same("merge_size", 2, sizes.merge_size, whose),
        least=least,
        most=most,
        mean=section.numbers("image_mean", _CLIP_MEAN, 3),
        std=section.numbers("image_std", _CLIP_STD, 3),
        scale=section.number("rescale_factor", 1 / 255),
    )


def pixel_bounds(section: Section) -> tuple[int, int]:
    """`Pixels.least` and `most`, under any of the names that folders have for them."""
    size = section.section("size") if isinstance(section.values.get("size"), dict) else Section({}, section.where)
    least = size.integer("shortest_edge", 56 * 56, least=1)
    most = size.integer("longest_edge", 28 * 28 * 1280, least=1)
    return section.integer("min_pixels", least, least=1), section.integer("max_pixels", most, least=1)


def is_too_narrow(height: int, width: int) -> bool:
    return max(height, width) > _WIDEST * min(height, width)


def check_shape(media: Media, height: int, width: int) -> None:
    if is_too_narrow(height, width):
        accepted = f"a longer side of at most {_WIDEST} times the shorter one"
        raise InvalidRequestError.of(media.where, f"{width}x{height} pixels", accepted)


def resized(height: int, width: int, pixels: Pixels) -> tuple[int, int]:
    """The sides after resizing: multiples of `pixels.factor`, with height x width in bounds and the shape nearly kept."""
    factor = pixels.factor
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    if tall * wide > pixels.most:
        shrink = math.sqrt((height * width) / pixels.most)
        tall = max(factor, math.floor(height / shrink / factor) * factor)
        wide = max(factor, math.floor(width / shrink / factor) * factor)
    elif tall * wide < pixels.least:
        grow = math.sqrt(pixels.least / (height * width))
        tall, wide = math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return tall, wide


def grid_of(frames: int, height: int, width: int, pixels: Pixels) -> Grid:
    """Of `frames` pictures with sides as they come."""
    tall, wide = resized(height, width, pixels)
    return -(-frames // pixels.temporal_patch_size), tall // pixels.patch_size, wide // pixels.patch_size


def rows_of(grid: Grid, pixels: Pixels) -> int:
    """Rows of the prompt."""
    return math.prod(grid) // pixels.merge_size**2


def resize(picture: Frames, tall: int, wide: int) -> Frames:
    """Bicubic with antialiasing, in whole grey levels."""
    return np.asarray(Image.fromarray(picture).resize((wide, tall), Image.Resampling.BICUBIC))


def resize_frame(frame: Frames, tall: int, wide: int) -> Frames:
    """As `resize`, across first and then down, with whole grey levels between: the order of transformers for videos. Pillow chooses
    its own by the sizes, and noise then differs by up to 20 levels. In this order one value of 200 differs by 1 level, and a few
    of a million by 2: the weights there have fewer bits."""
    across = Image.fromarray(frame).resize((wide, frame.shape[0]), Image.Resampling.BICUBIC)
    return np.asarray(across.resize((wide, tall), Image.Resampling.BICUBIC))


def patchify(frames: Frames, colours: npt.NDArray[np.float32], pixels: Pixels) -> npt.NDArray[np.float32]:
    """[frames, height, width, 3] in sides of whole rows -> [patches, values]. `colours` [3, 256] says what a colour becomes. The
    last frame is repeated until the last patch is full."""
    size, merge, depth = pixels.patch_size, pixels.merge_size, pixels.temporal_patch_size
    missing = -len(frames) % depth
    if missing:
        frames = np.concatenate([frames, np.repeat(frames[-1:], missing, axis=0)])
    times, tall, wide = len(frames) // depth, frames.shape[1] // size, frames.shape[2] // size
    cut = frames.reshape(times, depth, tall // merge, merge, size, wide // merge, merge, size, 3)
    # [times, rows down, rows across, merge, merge, 3, depth, size, size]
    ordered = cut.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    made = np.empty(ordered.shape, np.float32)
    for channel in range(3):
        made[:, :, :, :, :, channel] = colours[channel][ordered[:, :, :, :, :, channel]]
    return made.reshape(times * tall * wide, 3 * depth * size * size)


def image_colours(pixels: Pixels) -> npt.NDArray[np.float32]:
    """[3, 256]: rescaled first, then normalised, as pictures are."""
    scaled = (np.arange(256, dtype=np.float64) * pixels.scale).astype(np.float32)
    return np.asarray((scaled - _column(pixels.mean)) / _column(pixels.std), np.float32)


def video_colours(pixels: Pixels) -> npt.NDArray[np.float32]:
    """[3, 256]: rescaled and normalised at once, as frames are; it rounds otherwise."""
    whole = np.float32(1 / pixels.scale)
    moved = np.arange(256, dtype=np.float32) - _column(pixels.mean) * whole
    return np.asarray(moved / (_column(pixels.std) * whole), np.float32)


def _column(values: tuple[float, ...]) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)[:, None]
