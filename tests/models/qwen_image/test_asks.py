"""What a request asks is filled in as the model's authors have it, and what cannot be drawn is refused by name."""

from __future__ import annotations

import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.core.params import DiffusionParams
from omnistage.models.qwen_image.asks import checked
from omnistage.models.qwen_image.settings import PictureSizes

SIZES = PictureSizes(multiple=16, default=1024)


def test_what_is_not_said() -> None:
    """Fault: a default that is another model's."""
    ask = checked(DiffusionParams(), SIZES)
    assert (ask.height, ask.width, ask.steps, ask.scale, ask.negative) == (1024, 1024, 50, 1.0, None)
    assert checked(DiffusionParams(width=64), SIZES, (32, 48)).height == 32


@pytest.mark.parametrize(
    ("params", "scale", "negative"),
    [
        (DiffusionParams(true_cfg_scale=3.0), 3.0, " "),
        (DiffusionParams(guidance_scale=3.0), 3.0, " "),
        (DiffusionParams(guidance_scale=3.0, true_cfg_scale=2.0, negative_prompt="blue"), 2.0, "blue"),
        (DiffusionParams(guidance_scale=3.0, true_cfg_scale=0.0), 0.0, None),
        (DiffusionParams(guidance_scale=1.0, negative_prompt="blue"), 1.0, None),
        (DiffusionParams(negative_prompt=""), 4.0, ""),
    ],
)
def test_guidance(params: DiffusionParams, scale: float, negative: str | None) -> None:
    """Fault: an explicit 0 or "" is nothing; a scale is dropped because its other name is meant."""
    ask = checked(params, SIZES)
    assert (ask.scale, ask.negative) == (scale, negative)


@pytest.mark.parametrize(
    ("params", "field", "told"),
    [
        (
            DiffusionParams(height=700),
            "height",
            "700 is not accepted; accepted: a multiple of 16, the nearest are 688 or 704",
        ),
        (
            DiffusionParams(width=481),
            "width",
            "481 is not accepted; accepted: a multiple of 16, the nearest are 480 or 496",
        ),
        (DiffusionParams(width=3), "width", "3 is not accepted; accepted: a multiple of 16, the nearest are 16"),
    ],
)
def test_sides_between_two_tokens(params: DiffusionParams, field: str, told: str) -> None:
    """Fault: a picture of another size than was asked for."""
    with pytest.raises(InvalidRequestError) as error:
        checked(params, SIZES)
    assert error.value.field == field and error.value.message == f"{field}: {told}"


def test_sides_that_a_model_was_not_trained_for() -> None:
    """Fault: a model of one size draws mush of another."""
    small = PictureSizes(multiple=16, default=64, only=(64, 96))
    assert checked(DiffusionParams(height=96), small).width == 64
    with pytest.raises(InvalidRequestError, match=r"height: 128 is not accepted; accepted: 64 or 96, which is all"):
        checked(DiffusionParams(height=128), small)
