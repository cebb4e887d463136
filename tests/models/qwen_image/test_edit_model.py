"""What is planned for a request with pictures: sizes, conditions and what a mask asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.models.qwen_image.edit_processor import load_edit_plus_processor
from omnistage.models.qwen_image.loader import load_edit
from tests.models.easel import Easel, stage_config
from tests.models.qwen_image.drawing import Asked
from tests.models.qwen_image.editing import photograph, small_areas
from tests.tiny.qwen_image import write_processor

BOTH = Asked(pictures=(photograph(40, 60), photograph(80, 40, 1)), height=None, width=None)


@pytest.fixture(scope="module")
def plus(folder: Path) -> Iterator[Easel]:
    write_processor(folder)
    with small_areas():
        yield Easel(load_edit(stage_config(folder)), load_edit_plus_processor(stage_config(folder)))


def test_sizes(plus: Easel) -> None:
    """Fault: the picture is as large as another one; a picture that is drawn under a mask does not cover what is kept."""
    assert (plus.plan(BOTH).height, plus.plan(BOTH).width) == (128, 64)
    mask = np.zeros((40, 60, 4), np.uint8)
    masked = replace(BOTH, mask=mask)
    assert (plus.plan(masked).height, plus.plan(masked).width) == (64, 128)
    assert plus.plan(replace(masked, height=64, width=128)).extras["mask"].shape == (16, 32)
    with pytest.raises(InvalidRequestError, match="size: '64x64' is not accepted; accepted: 128x64 or none"):
        plus.plan(replace(masked, height=64, width=64))


def test_conditions(plus: Easel) -> None:
    """Fault: references are encoded for the negative prompt too; a row counts less than it takes."""
    plan = plus.plan(replace(BOTH, scale=3.0))
    positive, negative = plan.conditions
    assert len(positive.data["whole"]) == 2 and not negative.data["whole"]
    assert all(one is other for one, other in zip(positive.data["seen"], negative.data["seen"], strict=True))
    assert plan.extras["grids"] == ((16, 8), (8, 16), (16, 8))
    assert plan.tokens == 3 * 128 + max(positive.tokens, negative.tokens) - 64
