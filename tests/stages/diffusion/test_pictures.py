"""What both engines of pictures do with requests, however pictures are drawn."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.drawing.painter import painter_config
from tests.stages.diffusion.stage import DrivenStage, Stage
from tests.stages.diffusion.whole import WholeStage


@pytest.fixture(params=[Stage, WholeStage])
def kind(request: pytest.FixtureRequest) -> Callable[..., DrivenStage]:
    found: Callable[..., DrivenStage] = request.param
    return found


def test_a_request_ends_with_its_last_picture(kind: Callable[..., DrivenStage]) -> None:
    """Fault: an answer ends before all its pictures are out, or they are not counted."""
    stage = kind()
    stage.add(n=3, seed=1)
    stage.run()
    assert [output.finish_reason for output in stage.outputs] == [None, None, "done"]
    assert stage.outputs[-1].usage.images == len(stage.pictures()) == 3
    times = stage.outputs[-1].times
    assert 0 < times.forward_s <= times.running_s


def test_a_request_without_an_input_ends_without_pictures(kind: Callable[..., DrivenStage]) -> None:
    """Fault: a stage whose sources say nothing keeps the request, or counts pictures that it has not made."""
    stage = kind(painter_config(input_sources=(7,)), entry=False)
    stage.add(n=3)
    stage.feed(None, last=True)
    stage.run()
    (output,) = stage.outputs
    assert (output.finish_reason, output.usage.images, output.consumed) == ("done", 0, ((7, 0),))


def test_what_cannot_be_read_or_planned_fails_alone(kind: Callable[..., DrivenStage]) -> None:
    """Fault: a prompt that a processor or the model refuses ends the stage, or stays in it."""
    stage = kind()
    process = stage.engine._admission._processor

    def picky(request: object) -> object:
        return 1 / 0 if getattr(request, "request_id", "") == "broken" else process(request)

    stage.engine._admission._processor = picky
    stage.add("broken")
    stage.add("refused", "refuse", age=1)
    stage.add("drawn", age=2)
    stage.run()
    ended = stage.ended()
    assert ended["broken"] == "ZeroDivisionError: division by zero" and ended["drawn"] == "done"
    assert ended["refused"].startswith("prompt: 'refuse' is not accepted")
    gauges = stage.engine.gauges()
    assert (gauges["running"], gauges["waiting"], gauges["input_nbytes"]) == (0, 0, 0)
