"""The plain draw: what the settings mean, on rows small enough to count."""

from __future__ import annotations

import numpy as np
import torch

from omnistage.modeling.drawing import DRAW_SETTINGS, draw_tokens

LOGITS = torch.log(torch.tensor([[0.1, 0.4, 0.3, 0.2]]))


def drawn(chance: float, **filters: float) -> int:
    settings = np.zeros(1, DRAW_SETTINGS)
    for name, value in {"temperature": 1.0, "top_p": 1.0, "chance": chance, **filters}.items():
        settings[name] = value
    return draw_tokens(LOGITS.clone(), settings)[0]


def test_a_chance_walks_the_row() -> None:
    """Fault: the draw begins at another token, or a border belongs to its left neighbour."""
    assert [drawn(chance) for chance in (0.0, 0.05, 0.2, 0.6, 0.95)] == [0, 0, 1, 2, 3]


def test_filters_leave_the_best() -> None:
    """Fault: a filter keeps one too many or one too few."""
    assert {drawn(chance, top_k=2) for chance in np.linspace(0, 0.99, 50)} == {1, 2}
    assert {drawn(chance, top_p=0.75) for chance in np.linspace(0, 0.99, 50)} == {1, 2, 3}
    assert {drawn(chance, min_p=0.6) for chance in np.linspace(0, 0.99, 50)} == {1, 2}
    assert drawn(0.99, temperature=0.0) == 1
