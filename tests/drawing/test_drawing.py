"""Pictures all the way from Python, in worker processes and inline.

Faults pinned: a picture that is another one in a process of its own, streamed, or after its worker died; progress and partial
pictures that do not reach the caller; a request that is refused as the stage's fault.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from omnistage import DiffusionParams, Omni
from omnistage.core.output import OmniRequestOutput
from omnistage.models.registry import REGISTRY
from tests.drawing.painter import painter_config
from tests.stages.diffusion.stage import Stage

ASK = DiffusionParams(n=3, seed=7, num_inference_steps=6, height=256, width=256, partial_images=2)


def drawing(**overrides: Any) -> Iterator[Omni]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(REGISTRY, "drawing", "tests.drawing.family:PIPELINE")
        with Omni("drawing", **overrides) as model:
            yield model


@pytest.fixture(scope="module")
def worker() -> Iterator[Omni]:
    yield from drawing(engine_process=False)


@pytest.fixture(scope="module")
def inline() -> Iterator[Omni]:
    yield from drawing(inline=True)


@pytest.fixture(params=["worker", "inline"])
def model(request: pytest.FixtureRequest) -> Omni:
    found: Omni = request.getfixturevalue(request.param)
    return found


def expected(text: str, **ask: Any) -> list[np.ndarray[Any, Any]]:
    """The pictures as an engine makes them that nobody else uses."""
    stage = Stage(painter_config())
    stage.add(text=text, **ask)
    stage.run()
    made = stage.pictures()
    return [made["r", index] for index in range(len(made))]


def answered(model: Omni, prompts: list[str], params: DiffusionParams) -> list[OmniRequestOutput]:
    outputs = model.generate(prompts, params, use_tqdm=False)
    assert [output.error for output in outputs] == [None] * len(prompts)
    return outputs


def assert_same(made: Any, wanted: Any) -> None:
    """But for rounding: 1 of 255."""
    assert len(made) == len(wanted)
    for one, other in zip(made, wanted, strict=True):
        assert one.shape == other.shape
        assert np.abs(one.astype(int) - other.astype(int)).max() <= 1


def test_whole_and_streamed_pictures_are_those_of_the_engine(model: Omni) -> None:
    """Fault: pictures in another order, of other seeds, or that change when they are shown while they are made."""
    wanted = expected("a cat", n=3, seed=7, num_inference_steps=6, height=256, width=256)
    whole, beside = answered(model, ["a cat", "a dog"], ASK)
    assert_same(whole.images, wanted)
    assert (whole.final_output_type, whole.metrics["usage"][0]["images"]) == ("image", 3)
    assert not np.array_equal(whole.images[0], beside.images[0])
    parts = list(model.generate("a cat", ASK, stream=True))
    told = [part.multimodal_output.metadata for part in parts]
    finished = {one["index"]: part.images[0] for one, part in zip(told, parts, strict=True) if "seed" in one}
    assert_same([finished[index] for index in range(3)], wanted)
    steps = [(one["progress"]["index"], one["progress"]["step"]) for one in told if "progress" in one]
    assert sorted(steps) == [(index, step) for index in range(3) for step in range(1, 7)]
    partial = [(one["index"], one["partial"]) for one in told if "partial" in one]
    assert sorted(partial) == [(index, place) for index in range(3) for place in range(2)]


@pytest.mark.parametrize(
    ("prompt", "ask", "says"),
    [
        ("a cat", {"height": 13}, "height: 13 is not accepted; accepted: multiples of 8, the nearest of which is 16"),
        ("a cat", {"num_inference_steps": 900}, "num_inference_steps: 900 is not accepted"),
        ("a cat", {"height": 4096, "width": 2048}, "width, height: 2048x4096"),
        ("refuse", {}, "prompt: 'refuse'"),
    ],
)
def test_what_cannot_be_drawn_is_the_callers_fault(model: Omni, prompt: str, ask: dict[str, Any], says: str) -> None:
    """Fault: a wrong size reads as a failure of the stage."""
    (output,) = model.generate(prompt, DiffusionParams(**ask), use_tqdm=False)
    assert output.error is not None
    assert (output.error.code, output.error.message[: len(says)]) == ("invalid_request", says)


def test_a_killed_worker_draws_the_same_again(worker: Omni) -> None:
    """Fault: pictures are lost, or others, after the death of whoever was drawing them."""
    pid = worker.status().replicas[0].pid
    assert pid is not None
    killer = threading.Timer(0.4, os.kill, (pid, signal.SIGKILL))
    killer.start()
    (output,) = answered(worker, ["sleep"], DiffusionParams(n=2, seed=3, num_inference_steps=16))
    assert_same(output.images, expected("sleep", n=2, seed=3, num_inference_steps=16))
    assert output.metrics["attempts"] == 2


def test_a_painter_behind_a_writer_draws_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the painter begins before the text is whole, or ends the answer before the writer."""
    monkeypatch.setitem(REGISTRY, "told", "tests.drawing.family:TOLD")
    ask = DiffusionParams(seed=5, num_inference_steps=3)
    with Omni("told", inline=True) as model:
        (output,) = model.generate("one two three", [None, ask], use_tqdm=False)
    assert output.error is None
    assert output.text == "one two three"
    assert_same(output.images, expected("one two three", seed=5, num_inference_steps=3))
