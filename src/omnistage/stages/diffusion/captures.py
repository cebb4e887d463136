"""What a diffusion stage hands out: how far a request is, partial pictures, pictures (uint8 [height, width, channels])."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.core.errors import StageFailedError
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.spec import TensorSpec


def checked(made: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """`made`, C-contiguous. Raises StageFailedError for what is no picture."""
    if made.dtype != np.uint8 or made.ndim != 3:
        raise StageFailedError(f"the model made {made.dtype} {list(made.shape)} in place of a uint8 picture")
    return np.ascontiguousarray(made)


def progress(index: int, step: int, steps: int) -> MultimodalPayload:
    """Picture `index` has taken `step` of its `steps`."""
    return MultimodalPayload(metadata={"progress": {"step": step, "steps": steps, "index": index}})


def picture(made: npt.NDArray[np.uint8], index: int, seed: int) -> MultimodalPayload:
    """A picture, and the seed that draws it again."""
    return _with_image(made, {"index": index, "seed": seed})


def partial_picture(made: npt.NDArray[np.uint8], index: int, partial: int) -> MultimodalPayload:
    """An unfinished state of picture `index`, the number `partial` (0, 1, ...) of those that are shown of it."""
    return _with_image(made, {"index": index, "partial": partial})


def _with_image(made: npt.NDArray[np.uint8], metadata: dict[str, Any]) -> MultimodalPayload:
    """Without a copy: nobody else has `made`, which is C-contiguous."""
    spec = TensorSpec("uint8", tuple(made.shape))
    return MultimodalPayload({"image": Tensor(spec, made.data.cast("B").toreadonly())}, metadata)
