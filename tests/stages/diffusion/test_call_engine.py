"""The engine of models that draw whole pictures in one call, as traces.

Faults pinned: pictures of different asks in one call, or alike ones in several; a picture that goes to somebody else; a call that
goes on for nobody, or ends for all with one; a fault that hits others, or is told twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omnistage.core.errors import ConfigError
from omnistage.modeling.diffusion import Condition, PicturePlan, Wanted
from omnistage.stages.diffusion.build import build_diffusion_engine
from omnistage.stages.diffusion.caches.table import step_cache
from omnistage.stages.diffusion.call_engine import CallEngine
from tests.drawing.painter import painter_config
from tests.stages.diffusion.whole import FakeWhole, WholeStage, drawn

EMPTY = {"running": 0, "waiting": 0, "parked_total": 0, "rerun_total": 0, "input_nbytes": 0}


def load_whole(_config: Any) -> FakeWhole:
    return FakeWhole()


def colour(text: str, seed: int = 0, negative: str | None = None) -> int:
    """Of the picture that is drawn for a prompt."""
    texts = [text] if negative is None else [text, negative]
    plan = PicturePlan(8, 8, 1, tuple(Condition(one, {"text": one}, 0) for one in texts), 1)
    return int(drawn(Wanted(plan, seed))[0, 0, 0])


def held(stage: WholeStage) -> dict[str, float]:
    gauges = stage.engine.gauges()
    return {name: gauges[name] for name in EMPTY}


def colours(stage: WholeStage) -> dict[tuple[str, int], int]:
    return {place: int(picture[0, 0, 0]) for place, picture in stage.pictures().items()}


def test_the_kind_of_a_model_decides_its_engine() -> None:
    """Fault: a model without steps of its own is asked for some; a step cache is accepted and does nothing."""
    config = painter_config(loader="tests.stages.diffusion.test_call_engine:load_whole")
    assert isinstance(build_diffusion_engine(config), CallEngine)
    with pytest.raises(ConfigError, match="cache_backend: 'tea_cache' is not accepted; accepted: none"):
        step_cache(painter_config(cache_backend="tea_cache"), FakeWhole())


def test_pictures_that_are_alike_share_a_call() -> None:
    """Fault: sizes, steps, guidance, or the lack of a negative prompt, are those of a neighbour."""
    stage = WholeStage()
    asks: list[dict[str, Any]] = [
        {},
        {"height": 32},
        {"num_inference_steps": 3},
        {"guidance_scale": 2.0},
        {"negative_prompt": "no"},
    ]
    for place, ask in enumerate([*asks, *asks]):
        stage.add(str(place), f"wish {place}", age=place, **ask)
    stage.run()
    assert stage.model.calls == [[f"wish {place}", f"wish {place + 5}"] for place in range(5)]
    assert stage.ended() == {str(place): "done" for place in range(10)}
    assert {picture.shape for (name, _), picture in stage.pictures().items() if name in "16"} == {(32, 16, 3)}
    assert colours(stage)["9", 0] == colour("wish 9", negative="no")
    assert held(stage) == EMPTY and not stage.engine.has_work()


def test_every_picture_has_its_own_seed() -> None:
    """Fault: the pictures of a request, or requests that share a call, share a seed."""
    stage = WholeStage()
    stage.add("a", "cat", n=3, seed=5)
    stage.add("b", "cat", age=1, seed=9)
    stage.run()
    expected = {("a", index): colour("cat", 5 + index) for index in range(3)} | {("b", 0): colour("cat", 9)}
    assert colours(stage) == expected
    (last,) = [output for output in stage.outputs if output.request_id == "a" and output.finish_reason]
    assert last.usage.images == 3


def test_a_call_takes_what_its_budget_has_room_for() -> None:
    """Fault: a call takes more pictures than it may, none where one alone is more than it may, or one twice."""
    stage = WholeStage(painter_config(max_num_batched_tokens=8))  # two pictures of 16x16 pixels
    stage.add("a", "cat", n=3)
    stage.add("b", "dog", age=1, n=2)
    stage.add("c", "sea", age=2, height=64)
    stage.run()
    assert stage.model.calls == [["cat", "cat"], ["cat", "dog"], ["dog"], ["sea"]]
    assert len(stage.pictures()) == 6


def test_the_next_call_is_for_the_best_priority() -> None:
    """Fault: whoever came first is drawn first, however urgent the others are."""
    stage = WholeStage(painter_config(max_num_seqs=1, max_num_batched_tokens=1))
    stage.add("a", "cat", n=2)
    stage.step(2)
    stage.add("b", "dog", age=1)
    stage.add("c", "sea", age=2, priority=-1)
    stage.run()
    assert stage.model.calls == [["cat"], ["sea"], ["cat"], ["dog"]]


def test_steps_are_told_to_those_who_listen() -> None:
    """Fault: a caller who waits for the whole answer gets progress, or one who listens none; a step is a whole call."""
    stage = WholeStage()
    stage.add("whole", "cat")
    stage.add("streamed", "dog", age=1, stream=True, n=2)
    for step in range(1, 5):
        stage.step()
        assert stage.told_steps()[-1] == ("streamed", 1, step)
        assert not stage.ended()
    stage.step()
    assert stage.told_steps() == [("streamed", index, step) for step in range(1, 5) for index in range(2)]
    assert stage.ended() == {"whole": "done", "streamed": "done"}


def test_a_call_goes_on_for_those_who_stay() -> None:
    """Fault: one caller who leaves takes the pictures of the others along, or is sent his own."""
    stage = WholeStage()
    stage.add("a", "cat", stream=True)
    stage.add("b", "dog", age=1)
    stage.step(2)
    stage.engine.cancel("a")
    stage.run()
    assert colours(stage) == {("b", 0): colour("dog")} and stage.ended() == {"b": "done"}
    assert max(step for _, _, step in stage.told_steps()) == 2
    assert held(stage) == EMPTY
    assert stage.engine.gauges()["picture_steps_total"] == 2 * 2 + 2  # of pictures that somebody waits for


def test_a_call_ends_with_the_last_who_waits_for_it() -> None:
    """Fault: a picture is drawn to its end for nobody, and keeps the next one waiting."""
    stage = WholeStage()
    stage.add("a", "cat", num_inference_steps=200)
    stage.add("b", "cat", age=1, num_inference_steps=200)
    stage.step(3)
    stage.engine.cancel("a")
    stage.step()
    stage.engine.cancel("b")
    assert not stage.engine.has_work() and held(stage) == EMPTY
    stage.add("c", "dog")
    stage.run()
    assert stage.model.ended == [4, 4] and stage.ended() == {"c": "done"}


def test_who_comes_again_does_not_get_an_older_picture() -> None:
    """Fault: the second attempt of a request is answered with the picture of the first."""
    stage = WholeStage()
    stage.add("a", "cat")
    stage.add("b", "dog", age=1)
    stage.step()
    stage.engine.cancel("a")
    stage.add("a", "tree")
    stage.run()
    assert colours(stage) == {("a", 0): colour("tree"), ("b", 0): colour("dog")}


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ("fail", "ArithmeticError: told to fail"),
        ("ragged", "in place of a uint8 picture"),
        ("short", "made 0 pictures in place of 1"),
    ],
)
def test_only_what_fails_alone_fails(order: str, says: str) -> None:
    """Fault: a picture that cannot be drawn fails those of its call, is tried for ever, or ends the stage."""
    stage = WholeStage()
    for place, text in enumerate(["cat", order, "dog"]):
        stage.add(text, text, age=place)
    stage.run()
    assert stage.model.calls == [["cat", order, "dog"], ["cat"], [order], ["dog"]]
    ended = stage.ended()
    assert says in ended.pop(order) and ended == {"cat": "done", "dog": "done"}
    assert held(stage) == EMPTY | {"rerun_total": 1}


def test_nobody_is_drawn_again_who_has_left() -> None:
    """Fault: after a call that failed, pictures of a request that has left or failed are drawn."""
    stage = WholeStage()
    stage.add("a", "fail", n=2)
    stage.add("b", "cat", age=1, stream=True)
    stage.step(3)
    stage.engine.cancel("b")
    stage.run()
    assert stage.model.calls == [["fail", "fail", "cat"], ["fail"]]
    assert len(stage.ended()) == 1 and held(stage) == EMPTY | {"rerun_total": 1}


def test_what_is_refused_costs_no_call() -> None:
    """Fault: a request beyond the stage's bounds, or that the model refuses, is begun."""
    stage = WholeStage(painter_config(max_pixels=1000, max_steps=50))
    stage.add("size", height=40, width=40)
    stage.add("steps", num_inference_steps=51)
    stage.add("wish", "refuse")
    stage.run()
    assert stage.model.calls == []
    assert [output.error.code for output in stage.outputs if output.error] == ["invalid_request"] * 3


def test_a_stage_with_a_source_waits_for_its_end() -> None:
    """Fault: a stage spins while its source says nothing; an answer ends before, or not with, its source."""
    stage = WholeStage(painter_config(input_sources=(7,)), entry=False)
    stage.add()
    stage.run()
    assert not stage.engine.has_work()
    stage.feed("a cat", last=True)
    stage.run()
    assert stage.ended() == {"r": "done"} and np.unique(stage.pictures()["r", 0]) == [colour("a cat")]
