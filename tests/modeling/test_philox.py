"""Philox4x32-10 against the vectors its authors publish (Random123, kat_vectors), and what is made of it."""

from __future__ import annotations

import numpy as np
import pytest

from omnistage.modeling.philox import philox4x32, uniforms


def words(text: str) -> np.ndarray:
    return np.array([[int(word, 16) for word in text.split()]], np.uint32)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_the_published_vectors(counter: str, key: str, expected: str) -> None:
    """Fault: a round too few, words swapped, a key that does not wrap."""
    assert (philox4x32(words(counter), words(key)) == words(expected)).all()


def draw(seed: int, position: int, choice: int = 0, sub_step: int = 0) -> float:
    made = uniforms(
        np.array([seed], np.uint64), np.array([position], np.uint64), np.array([[choice, sub_step]], np.uint32)
    )
    return float(made[0])


def test_every_part_of_the_counter_counts() -> None:
    """Fault: the high half of a seed, or the choice, is ignored, so that two streams are one."""
    draws = [draw(1, 0), draw(2, 0), draw(1 + 2**40, 0), draw(1, 1), draw(1, 2**33), draw(1, 0, 1), draw(1, 0, 0, 1)]
    assert len(set(draws)) == len(draws)


def test_a_draw_does_not_depend_on_its_neighbours() -> None:
    """Fault: a vectorised path that mixes rows."""
    seeds, positions = np.arange(100, dtype=np.uint64) * 7919, np.arange(100, dtype=np.uint64)
    streams = np.stack([np.arange(100) % 3, np.arange(100) % 2], axis=1).astype(np.uint32)
    together = uniforms(seeds, positions, streams)
    alone = [draw(index * 7919, index, index % 3, index % 2) for index in range(100)]
    assert together.tolist() == alone


def test_draws_are_uniform() -> None:
    """Fault: bits lost on the way to a number in [0, 1)."""
    count = 40_000
    made = uniforms(np.full(count, 5, np.uint64), np.arange(count, dtype=np.uint64), np.zeros((count, 2), np.uint32))
    assert made.min() >= 0.0
    assert made.max() < 1.0
    shares = np.histogram(made, bins=20, range=(0, 1))[0] / count
    assert abs(shares - 0.05).max() < 0.006
