"""From an input to a plan within bounds: before anything is allocated, with the field, its value and what is accepted."""

from __future__ import annotations

from typing import Any

import pytest

from omnistage.modeling.diffusion import Condition, PicturePlan
from tests.drawing.painter import painter_config
from tests.stages.diffusion.stage import Stage


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (
            {"height": 40, "width": 40},
            "width, height: 40x40 (1600 pixels) is not accepted; accepted: at most 1000 pixels (max_pixels)",
        ),
        ({"num_inference_steps": 51}, "num_inference_steps: 51 is not accepted; accepted: at most 50 (max_steps)"),
        ({"height": 13}, "height: 13 is not accepted; accepted: multiples of 8, the nearest of which is 16"),
        ({"text": "refuse"}, "prompt: 'refuse' is not accepted"),
    ],
)
def test_a_request_beyond_its_bounds_is_refused_before_it_begins(ask: dict[str, Any], says: str) -> None:
    """Fault: memory for a picture that is refused afterwards, or a refusal that does not say what would do."""
    stage = Stage(painter_config(max_pixels=1000, max_steps=50))
    stage.add(**ask)
    stage.run()
    assert stage.ended()["r"].startswith(says)
    assert stage.outputs[0].error is not None
    assert stage.outputs[0].error.code == "invalid_request"
    assert (stage.model.encoded, stage.model.calls) == ([], [])
    assert stage.engine.gauges()["input_nbytes"] == 0


def test_what_is_within_the_bounds_is_drawn() -> None:
    """Fault: the largest picture that is allowed is refused."""
    stage = Stage(painter_config(max_pixels=256, max_steps=3))
    stage.add(height=16, width=16, num_inference_steps=3)
    stage.run()
    assert stage.ended() == {"r": "done"}


def test_what_a_processor_raises_is_its_requests_fault() -> None:
    """Fault: the stage dies of a prompt that cannot be read."""
    stage = Stage()
    stage.engine._admission._processor = lambda request: 1 / 0  # type: ignore[assignment, return-value]
    stage.add()
    stage.run()
    assert stage.ended() == {"r": "ZeroDivisionError: division by zero"}


def test_more_conditions_than_there_are_branches_are_the_models_fault() -> None:
    """Fault: a third branch that nobody guides by is computed."""
    stage = Stage()
    stage.model.plan = lambda *_: PicturePlan(8, 8, 1, (Condition("a", {}, 1),) * 3, 1)  # type: ignore[method-assign]
    stage.add()
    stage.run()
    assert stage.ended() == {"r": "the model plans 3 conditions, not 1 or 2"}
