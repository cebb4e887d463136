"""What a request asks is filled in as the models' authors have it, and what cannot be drawn is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.core.params import DiffusionParams
from omnistage.models.flux.asks import checked
from omnistage.models.flux.settings import FluxSettings

DEV = FluxSettings(guided=True, scale=8, latents=16, clip_tokens=77, clip_vocab=49408, t5_vocab=32128)
SCHNELL = replace(DEV, guided=False)


def test_what_is_not_said() -> None:
    """Fault: a default that is another model's."""
    ask = checked(DiffusionParams(), DEV)
    assert (ask.height, ask.width, ask.steps, ask.guidance, ask.scale, ask.negative) == (1024, 1024, 28, 3.5, 1.0, None)
    assert checked(DiffusionParams(), SCHNELL).steps == 4
    assert (DEV.t5_tokens, SCHNELL.t5_tokens) == (512, 256)


@pytest.mark.parametrize(
    ("told", "guidance", "negative"),
    [
        ({"guidance_scale": 0.0}, 0.0, None),
        ({"guidance_scale": 7.0, "true_cfg_scale": 2.0, "negative_prompt": "blue"}, 7.0, "blue"),
        ({"true_cfg_scale": 2.0}, 3.5, ""),
        ({"true_cfg_scale": 1.0, "negative_prompt": "blue"}, 3.5, None),
        ({"true_cfg_scale": 0.0, "negative_prompt": "blue"}, 3.5, None),
        ({"negative_prompt": " "}, 3.5, None),
    ],
)
def test_two_kinds_of_guidance(told: dict[str, Any], guidance: float, negative: str | None) -> None:
    """Fault: an explicit 0 is nothing; one kind is taken for the other; a negative prompt is encoded for nothing."""
    ask = checked(DiffusionParams(**told), DEV)
    assert (ask.guidance, ask.negative) == (guidance, negative)


@pytest.mark.parametrize(
    ("settings", "told", "field", "said"),
    [
        (DEV, {"height": 700}, "height", "a multiple of 16, the nearest are 688 or 704"),
        (DEV, {"width": 8}, "width", "a multiple of 16, the nearest are 16"),
        (DEV, {"negative_prompt": "blue"}, "negative_prompt", "with a true_cfg_scale above 1"),
        (SCHNELL, {"guidance_scale": 3.5}, "guidance_scale", "0, 1 or none, as this model reads none"),
    ],
)
def test_what_would_be_dropped_without_a_word(
    settings: FluxSettings, told: dict[str, Any], field: str, said: str
) -> None:
    """Fault: a picture of another size, or one that a scale or a prompt had no part in."""
    with pytest.raises(InvalidRequestError) as error:
        checked(DiffusionParams(**told), settings)
    assert error.value.field == field and said in error.value.message
    assert checked(DiffusionParams(guidance_scale=0.0), SCHNELL).negative is None
