"""The first-block cache."""

from __future__ import annotations

import torch

from omnistage.modeling.diffusion import Row
from tests.drawing.painter import FakePainter
from tests.stages.diffusion.cached import cache_of, picture_of


def test_every_row_decides_for_itself() -> None:
    """Fault: rows that need their blocks get what another one remembers, or all compute because one does."""
    model = FakePainter()
    cache = cache_of("first_block", 0.05, model)
    old, new = picture_of(model, "a cat", 1), picture_of(model, "a dog", 2)
    _, (memory,) = cache.predict([Row(old, 0, 0)], [None])
    alone, _ = cache.predict([Row(old, 0, 0)], [memory])
    spared = cache.rows_spared
    made, memories = cache.predict([Row(new, 0, 0), Row(old, 0, 0), Row(new, 0, 1)], [None, memory, None])
    assert cache.rows_spared == 2 * spared
    assert torch.allclose(made[1], alone[0], atol=1e-6)
    assert memories[1] is memory
    for place, step in ((0, 0), (2, 1)):
        assert torch.allclose(made[place], model.predict([Row(new, 0, step)])[0], atol=1e-6)
