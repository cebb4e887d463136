"""What an autoencoder makes, as bytes of pixels. Knows no models."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from omnistage.core.errors import StageFailedError


def pixels_of(made: torch.Tensor) -> list[npt.NDArray[np.uint8]]:
    """[R, channels, height, width] of -1 to 1 -> R pictures [height, width, channels]. Raises StageFailedError for values that are
    no numbers, which would be black."""
    colours = made.float() * 0.5 + 0.5
    if not bool(torch.isfinite(colours).all()):
        raise StageFailedError("the autoencoder made a picture of values that are no numbers")
    scaled = colours.clamp(0.0, 1.0).permute(0, 2, 3, 1) * 255
    return list(scaled.round().to(torch.uint8).contiguous().numpy())
