"""What leaves a diffusion stage."""

from __future__ import annotations

import numpy as np

from omnistage.stages.diffusion import captures


def test_a_picture_leaves_as_it_is_and_cannot_be_written_to() -> None:
    """Fault: pixels are copied once more, or change on their way."""
    made = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    shown = captures.picture(made, 1, 7)
    assert np.array_equal(shown.numpy("image"), made)
    assert (shown.metadata, shown.numpy("image").flags.writeable) == ({"index": 1, "seed": 7}, False)
    assert np.shares_memory(shown.numpy("image"), made)


def test_progress_and_partial_pictures_can_be_told_from_pictures() -> None:
    """Fault: an unfinished picture is taken for the finished one."""
    made = np.zeros((1, 1, 3), np.uint8)
    assert captures.partial_picture(made, 2, 0).metadata == {"index": 2, "partial": 0}
    told = captures.progress(2, 3, 9)
    assert (told.metadata, told.nbytes) == ({"progress": {"step": 3, "steps": 9, "index": 2}}, 0)
