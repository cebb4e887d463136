"""Small picture files and forms for tests."""

import io
from typing import Any

import numpy as np
from PIL import Image

JSON = "application/json"


def picture_file(width: int = 8, height: int = 6, form: str = "PNG", mode: str = "RGB", **options: Any) -> bytes:
    """Noise, so that there are bytes to lose; of RGBA the left half can be seen through."""
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 4), np.uint8)
    pixels[:, : width // 2, 3] = 0
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, form, **options)
    return file.getvalue()


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))
