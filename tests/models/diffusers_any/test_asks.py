"""What a request may ask of a pipeline that is only known by what it takes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.core.params import DiffusionParams
from omnistage.core.request import Prompt
from omnistage.models.diffusers_any.asks import ARGUMENTS, MOST_CHARS, CallShape, planned

ALL = CallShape("APipeline", frozenset(ARGUMENTS), 30, 64, 96, 16)
LITTLE = dataclasses.replace(ALL, takes=frozenset({"num_inference_steps"}), height=None)
SMALL = dataclasses.replace(ALL, most=96)
CAT = Prompt(text="a cat")


def test_what_is_not_asked_for_is_the_pipelines_own() -> None:
    """Fault: a default of ours in place of the pipeline's; a picture without a size, which no bound can hold."""
    plan = planned(CAT, DiffusionParams(), ALL)
    assert (plan.height, plan.width, plan.steps, plan.tokens, plan.extras) == (64, 96, 30, 24, {})
    assert [condition.data["text"] for condition in plan.conditions] == ["a cat"]


def test_what_is_asked_for_is_kept() -> None:
    """Fault: a scale of 0 is taken for none, or a scale goes under another name."""
    asked = DiffusionParams(
        height=32, width=48, num_inference_steps=3, guidance_scale=0.0, true_cfg_scale=2.5, negative_prompt="rain"
    )
    plan = planned(CAT, asked, ALL)
    assert (plan.height, plan.width, plan.steps, plan.tokens) == (32, 48, 3, 6)
    assert plan.extras == {"guidance_scale": 0.0, "true_cfg_scale": 2.5}
    assert [condition.data["text"] for condition in plan.conditions] == ["a cat", "rain"]


@pytest.mark.parametrize(
    ("shape", "asked", "field", "says"),
    [
        (ALL, {"height": 40}, "height", "40 is not accepted; accepted: a multiple of 16, the nearest are 32 or 48"),
        (ALL, {"width": 9}, "width", "9 is not accepted; accepted: a multiple of 16, the nearest are 16"),
        (SMALL, {"height": 112}, "height", "112 is not accepted; accepted: at most 96, as APipeline knows no places"),
        (ALL, {"partial_images": 2}, "partial_images", "2 is not accepted; accepted: none, as APipeline shows no"),
        (LITTLE, {"negative_prompt": ""}, "negative_prompt", "'' is not accepted; accepted: none, as APipeline takes"),
        (LITTLE, {"guidance_scale": 0.0}, "guidance_scale", "0.0 is not accepted; accepted: none, as APipeline takes"),
        (LITTLE, {"true_cfg_scale": 2.0}, "true_cfg_scale", "takes no true_cfg_scale"),
        (LITTLE, {"width": 64}, "width", "takes no width"),
        (LITTLE, {}, "height", "None is not accepted; accepted: a number of pixels, as APipeline has no size"),
    ],
)
def test_what_it_cannot_do_is_refused(shape: CallShape, asked: dict[str, Any], field: str, says: str) -> None:
    """Fault: an argument that the pipeline lacks is dropped without a word, or is its TypeError; a size that it rounds."""
    with pytest.raises(InvalidRequestError) as raised:
        planned(CAT, DiffusionParams(**asked), shape)
    assert raised.value.field == field and says in raised.value.message


def test_nobody_asks_for_anything() -> None:
    """Fault: an empty prompt is drawn, at the price of any other."""
    with pytest.raises(InvalidRequestError, match="prompt: ' ' is not accepted"):
        planned(Prompt(text=" "), DiffusionParams(), ALL)


@pytest.mark.parametrize(
    ("prompt", "asked", "field"),
    [
        (Prompt(text="x" * (MOST_CHARS + 1)), {}, "prompt"),
        (Prompt(messages=({"role": "user", "content": "x" * (MOST_CHARS + 1)},)), {}, "messages[0].content"),
        (CAT, {"negative_prompt": "x" * (MOST_CHARS + 1)}, "negative_prompt"),
    ],
)
def test_a_text_of_megabytes_is_refused_unread(prompt: Prompt, asked: dict[str, Any], field: str) -> None:
    """Fault: the pipeline tokenises all of it in order to cut it, and for minutes nobody else is heard."""
    with pytest.raises(InvalidRequestError, match=f"of {MOST_CHARS + 1} characters.*at most {MOST_CHARS}") as raised:
        planned(prompt, DiffusionParams(**asked), ALL)
    assert raised.value.field == field and len(raised.value.message) < 150
