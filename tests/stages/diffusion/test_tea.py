"""TeaCache."""

from __future__ import annotations

import torch

from omnistage.modeling.diffusion import Row
from omnistage.stages.diffusion.caches.base import Memory
from tests.drawing.painter import FakePainter
from tests.stages.diffusion.cached import cache_of, picture_of


def test_small_changes_add_up() -> None:
    """Fault: a picture that changes slowly is never computed again."""
    model = FakePainter()
    cache = cache_of("tea_cache", 0.2, model, coefficients=[0.0, 0.15])
    picture = picture_of(model, "a cat", 1, steps=9)
    memories: list[Memory | None] = [None]
    spared: list[int] = []
    for step in range(6):
        before = cache.rows_spared
        memories = [*cache.predict([Row(picture, 0, step)], memories)[1]]
        spared.append(cache.rows_spared - before)
    assert spared == [0, 4, 0, 4, 0, 4]


def test_the_polynomial_reads_its_coefficients_from_the_highest_power() -> None:
    """Fault: coefficients that were fitted elsewhere mean something else here."""
    model = FakePainter()
    cache = cache_of("tea_cache", 1000.0, model, coefficients=[3.0, 2.0, 1.0])
    memory = Memory(torch.zeros(1), torch.zeros(1))
    kept = cache.decided(memory, 10.0, torch.ones(1))
    assert kept is not None
    assert (kept.drift, kept.signal.item()) == (321.0, 1.0)
