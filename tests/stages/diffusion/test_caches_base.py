"""Step caches of every kind against the plain forward pass, row by row."""

from __future__ import annotations

import pytest
import torch

from omnistage.modeling.diffusion import Row
from omnistage.stages.diffusion.caches.base import Memory, relative_changes
from tests.drawing.painter import FakePainter
from tests.stages.diffusion.cached import KINDS, cache_of, picture_of


@pytest.mark.parametrize("kind", KINDS)
def test_a_threshold_of_zero_computes_everything(kind: str) -> None:
    """Fault: a block that is left out, or run twice, in the way through the cache."""
    model = FakePainter()
    cache = cache_of(kind, 0.0, model)
    picture = picture_of(model, "a cat", 1)
    memories: list[Memory | None] = [None]
    for step in range(6):
        made, remembered = cache.predict([Row(picture, 0, step)], memories)
        assert torch.allclose(made[0], model.predict([Row(picture, 0, step)])[0], atol=1e-6)
        memories = [*remembered]
    assert (cache.rows_run, cache.rows_spared) == (6 * model.num_blocks, 0)


@pytest.mark.parametrize(("kind", "checked"), [("first_block", 1), ("tea_cache", 0)])
def test_first_and_last_steps_are_whole_and_what_was_added_is_added_again(kind: str, checked: int) -> None:
    """Fault: a picture ends on an old prediction, or what is spared is lost."""
    model = FakePainter()
    cache = cache_of(kind, 100.0, model)
    picture = picture_of(model, "a cat", 1)
    first, memories = cache.predict([Row(picture, 0, 0)], [None])
    again, _ = cache.predict([Row(picture, 0, 1)], memories)
    flow = model.open([Row(picture, 0, 1)])
    for block in range(checked):
        flow = model.block(block, flow)
    assert torch.allclose(again[0], torch.tanh(flow.hidden[0] + memories[0].added), atol=1e-6)
    assert (cache.rows_run, cache.rows_spared) == (4 + checked, 4 - checked)
    cache.predict([Row(picture, 0, 5)], memories)
    assert cache.rows_run == 8 + checked
    assert not torch.equal(first[0], again[0])


def test_a_change_from_nothing_or_to_no_number_is_infinite() -> None:
    """Fault: rows without a value in common are taken for equal."""
    one, zero = torch.ones(2), torch.zeros(2)
    nan = torch.full((2,), float("nan"))
    assert relative_changes([one, zero, nan, 3 * one], [zero, zero, one, one]) == [float("inf")] * 3 + [2.0]
    assert relative_changes([], []) == []
