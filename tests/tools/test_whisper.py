"""The recogniser's own parts that need no weights, and that all weights arrive."""

import numpy as np
import pytest

from tests.tools.whisper import RATE_HZ, windows


@pytest.mark.parametrize("seconds", [0, 1, 30, 31, 75])
def test_windows_make_up_the_whole(seconds: int) -> None:
    """Fault: samples lost or repeated between windows, or a window that the model cuts off."""
    samples = np.random.default_rng(0).standard_normal(seconds * RATE_HZ).astype(np.float32)
    pieces = windows(samples)
    assert np.array_equal(np.concatenate(pieces), samples)
    assert all(piece.size <= 30 * RATE_HZ for piece in pieces)


def test_windows_end_where_it_is_quiet() -> None:
    """Fault: a word divided between two windows is misheard."""
    samples = np.ones(40 * RATE_HZ, np.float32)
    samples[27 * RATE_HZ : 28 * RATE_HZ] = 0
    assert 27 * RATE_HZ <= windows(samples)[0].size <= 28 * RATE_HZ
