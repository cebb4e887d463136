"""Rows of pictures are those of transformers' vision encoder, with windows that are cut at the edges too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from omnistage.models.qwen_image.settings import vision_shape
from omnistage.models.qwen_image.vision import VisionEncoder, windows
from omnistage.models.qwen_image.weights import read_vision


@torch.inference_mode()
@pytest.mark.parametrize(("tall", "wide"), [(2, 2), (8, 8), (10, 22), (26, 12)])
def test_rows(folder: Path, pipeline: Any, tall: int, wide: int) -> None:
    """Fault: a patch sees another window, or is turned by another place; squares come back in another order."""
    shape = vision_shape(folder)
    ours = VisionEncoder(shape, read_vision(folder, shape, torch.float32))
    patches = torch.randn(tall * wide, 3 * 2 * 14 * 14, generator=torch.Generator().manual_seed(0))
    expected = pipeline.text_encoder.model.visual(patches, grid_thw=torch.tensor([[1, tall, wide]])).pooler_output
    assert torch.allclose(ours.encode(patches, tall, wide), expected, rtol=0, atol=1e-5)


def test_windows() -> None:
    """Fault: a square that is in no window, or in two; a window that is none."""
    order, runs = windows(5, 7, 4)
    assert sorted(order.tolist()) == list(range(35))
    assert runs == ((1, 16), (1, 12), (1, 4), (1, 3))
    assert order[:5].tolist() == [0, 1, 2, 3, 7] and order[16:20].tolist() == [4, 5, 6, 11]
    assert windows(8, 4, 4)[1] == ((2, 16),) and windows(1, 1, 4)[1] == ((1, 1),)
