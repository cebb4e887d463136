"""Rotations of pictures, references and text are those of diffusers."""

from __future__ import annotations

import pytest
import torch

from omnistage.models.qwen_image.rotary import rotations
from omnistage.models.qwen_image.settings import Grid


@pytest.mark.parametrize("grids", [((4, 4),), ((5, 3),), ((2, 9), (6, 4), (1, 1))])
def test_rotations(grids: tuple[Grid, ...]) -> None:
    """Fault: height and width change places; the middle of an odd side is the other one; the text begins inside a picture."""
    from diffusers.models.transformers.transformer_qwenimage import QwenEmbedRope

    theirs = QwenEmbedRope(10000, [8, 4, 4], scale_rope=True)
    pictures, text = theirs([[(1, *grid) for grid in grids]], device=torch.device("cpu"), max_txt_seq_len=6)
    found = rotations((8, 4, 4), grids, 6)
    assert torch.equal(found, torch.cat([text, pictures]))
