"""The compiled draw against the plain one: equal tokens, but where a chance lies on the border of two within rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnistage.modeling.drawing import DRAW_SETTINGS, NUCLEUS_CANDIDATES, draw_tokens
from omnistage.modeling.kernels.native import KernelOps
from omnistage.modeling.philox import uniforms

quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
BORDER = 2e-6


def rows_of(asked: list[dict[str, float]]) -> np.ndarray:
    found = np.zeros(len(asked), DRAW_SETTINGS)
    for index, row in enumerate(asked):
        for name, value in {"top_p": 1.0, **row}.items():
            found[name][index] = value
    return found


ROW = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.01, 0.7, 1.0, 5.0]),
        "top_p": st.sampled_from([1.0, 0.05, 0.5, 0.95, 0.999999]),
        "min_p": st.sampled_from([0.0, 0.0, 0.05, 1.0]),
        "top_k": st.sampled_from([0, -1, 1, 2, 50, 299, 300, 5000]),
        "chance": st.floats(0, 1, exclude_max=True, allow_subnormal=False),
    }
)


@given(
    rows=st.lists(ROW, min_size=1, max_size=4),
    vocab=st.sampled_from([1, 7, 64, 255, 257, 300, 1000, 5003]),
    spread=st.sampled_from([0.0, 0.5, 3.0, 40.0]),
    rounds=st.booleans(),
    seed=st.integers(0, 999),
)
@quick
def test_draws_what_the_plain_form_draws(
    kernels: KernelOps, rows: list[dict[str, float]], vocab: int, spread: float, rounds: bool, seed: int
) -> None:
    logits = spread * torch.randn(len(rows), vocab, generator=torch.Generator().manual_seed(seed))
    if rounds:
        logits = logits.round()  # many equal values
    asked = rows_of(rows)
    found = kernels.draw(logits, asked)
    allowed = [draw_tokens(logits, shifted(asked, by)) for by in (0.0, -BORDER, BORDER)]
    for row, token in enumerate(found):
        assert token in {tokens[row] for tokens in allowed}


def shifted(asked: np.ndarray, by: float) -> np.ndarray:
    moved = asked.copy()
    moved["chance"] = np.clip(moved["chance"] + by, 0.0, np.nextafter(1.0, 0.0))
    return moved


def test_rows_that_are_not_finite_draw_nothing(kernels: KernelOps) -> None:
    logits = torch.zeros(4, 40)
    logits[0, 33] = float("nan")
    logits[1, 39] = float("inf")
    logits[2] = float("-inf")
    asked = rows_of([{"temperature": temperature} for temperature in (1.0, 0.0, 1.0, 0.0)])
    assert kernels.draw(logits, asked) == [-1, -1, -1, 0]
    assert draw_tokens(logits, asked) == [-1, -1, -1, 0]


@pytest.mark.parametrize("row", [{}, {"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 8, "top_p": 0.8}])
def test_draws_with_the_frequencies_that_the_filters_leave(kernels: KernelOps, row: dict[str, float]) -> None:
    """Uniforms spread evenly over [0, 1) must find each token as often as its share says."""
    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(3)) * 2
    count = 4000
    asked = rows_of([{"temperature": 1.0, **row, "chance": (index + 0.5) / count} for index in range(count)])
    found = np.bincount(kernels.draw(logits.expand(count, -1).contiguous(), asked), minlength=300) / count
    weights = np.exp(logits[0].double().numpy())
    order = np.argsort(-weights)
    share = weights[order] / weights.sum()
    keep = np.ones(300, bool)
    if row.get("top_k"):
        keep &= np.arange(300) < row["top_k"]
        share = np.where(keep, share, 0) / share[keep].sum()
    keep &= np.cumsum(share) - share < row.get("top_p", 1.0)
    keep &= share >= row.get("min_p", 0.0) * share[0]
    expected = np.zeros(300)
    expected[order[keep]] = share[keep] / share[keep].sum()
    assert np.abs(found - expected).max() <= 2 / count


def test_a_nucleus_wider_than_the_candidates_is_drawn_from_the_whole_row(kernels: KernelOps) -> None:
    vocab = 4 * NUCLEUS_CANDIDATES
    asked = rows_of([{"temperature": 1.0, "top_p": 0.9, "chance": chance} for chance in (0.0, 0.4, 0.99)])
    logits = torch.zeros(3, vocab)
    found = kernels.draw(logits, asked)
    assert found == draw_tokens(logits, asked)
    assert max(found) > NUCLEUS_CANDIDATES


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 15)),
        max_size=40,
    )
)
@quick
def test_chances_are_those_of_the_plain_form(kernels: KernelOps, rows: list[tuple[int, int, int, int]]) -> None:
    """Fault: other chances than without kernels, by one bit or by a word: a request says something else after an update."""
    seeds, positions = (np.array([row[part] for row in rows], np.uint64) for part in (0, 1))
    streams = np.array([row[2:] for row in rows], np.uint32).reshape(-1, 2)
    assert kernels.uniforms(seeds, positions, streams).tolist() == uniforms(seeds, positions, streams).tolist()
