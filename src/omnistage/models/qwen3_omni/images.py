"""A picture, encoded or raw, as the vision encoder reads it. Limits are asked before it is decoded. Knows no prompts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omnistage.core.request import Media
from omnistage.modeling.patches import Grid, Pixels, check_shape, grid_of, image_colours, patchify, resize, rows_of
from omnistage.modeling.pictures import read_picture
from omnistage.models.qwen3_omni.limits import MediaLimits, check_rows


def read_image(media: Media, pixels: Pixels, limits: MediaLimits, room: int) -> tuple[npt.NDArray[np.float32], Grid]:
    """Patches [patches, values] and their grid. `room`: rows of the prompt that are left. Raises InvalidRequestError."""

    def check(height: int, width: int) -> None:
        check_shape(media, height, width)
        check_rows(media, rows_of(grid_of(1, height, width, pixels), pixels), room)

    picture = read_picture(media, most_nbytes=limits.image_nbytes, most_pixels=limits.image_pixels, check=check)
    grid = grid_of(1, picture.shape[0], picture.shape[1], pixels)
    small = resize(picture, grid[1] * pixels.patch_size, grid[2] * pixels.patch_size)
    return patchify(small[None], image_colours(pixels), pixels), grid
