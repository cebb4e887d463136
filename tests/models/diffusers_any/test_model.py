"""Pictures are those of the pipeline when it is called alone with the same seed, to one grey level."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

from omnistage.core.errors import InvalidRequestError, StageFailedError
from omnistage.core.params import DiffusionParams
from omnistage.core.request import OmniRequest
from omnistage.modeling.diffusion import Wanted
from omnistage.stages.base import StageRequest
from omnistage.stages.diffusion.call_engine import CallEngine
from omnistage.wire.messages import CLIENT
from tests.fakes import request_of
from tests.models.diffusers_any.conftest import Tiny, stage_config

MORE: tuple[dict[str, Any], ...] = (
    {"guidance_scale": 3.0, "negative_prompt": "rain"},
    {"guidance_scale": 1.0},
    {"height": 48, "width": 24, "num_inference_steps": 3},
)


def wanted(tiny: Tiny, text: str, seed: int, **more: Any) -> Wanted:
    return Wanted(tiny.model.plan(request_of(text), DiffusionParams(**{"num_inference_steps": 4} | more), {}), seed)


def by_diffusers(tiny: Tiny, text: str, seed: int, **more: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The picture as the library gives it to people."""
    generator = torch.Generator().manual_seed(seed)
    asked = {"num_inference_steps": 4} | more
    return np.asarray(tiny.pipeline(text, generator=generator, **asked).images[0])


def assert_same(made: Any, expected: Any) -> None:
    assert made.shape == expected.shape and made.dtype == np.uint8
    assert int(np.abs(made.astype(int) - expected.astype(int)).max()) <= 1


def told(_step: int, _steps: int) -> None:
    """The call may go on."""


@pytest.mark.parametrize("more", [{}, *MORE])
def test_alone_and_among_others(tiny: Tiny, more: dict[str, Any]) -> None:
    """Fault: pictures of a call share a random stream, change places, or lose their guidance, size or steps; the noise that a
    solver draws on its way is that of a neighbour."""
    texts = ["a cat", "the red house on the sea", "a dog"]
    together = tiny.model.draw([wanted(tiny, text, 5 + place, **more) for place, text in enumerate(texts)], told)
    for place, text in enumerate(texts):
        assert_same(together[place], by_diffusers(tiny, text, 5 + place, **more))
    (alone,) = tiny.model.draw([wanted(tiny, texts[1], 6, **more)], told)
    assert_same(alone, by_diffusers(tiny, texts[1], 6, **more))
    assert not np.array_equal(together[0], together[2])


def test_what_is_asked_for_matters(tiny: Tiny) -> None:
    """Fault: the checkpoints of these tests would not notice what is lost."""
    plain = by_diffusers(tiny, "a cat", 5)
    others = [("a dog", 5, {}), ("a cat", 6, {}), *(("a cat", 5, more) for more in MORE)]
    for text, seed, more in others:
        made = by_diffusers(tiny, text, seed, **more)
        assert made.shape != plain.shape or np.abs(made.astype(int) - plain.astype(int)).max() > 8


def test_steps_are_counted(tiny: Tiny) -> None:
    """Fault: progress that begins at nothing, or goes beyond its end."""
    steps: list[tuple[int, int]] = []
    tiny.model.draw([wanted(tiny, "a cat", 1)], lambda step, of: steps.append((step, of)))
    assert steps == [(step, 4) for step in range(1, 5)]


def test_what_the_pipeline_checks_is_the_callers_to_hear(tiny: Tiny) -> None:
    """Fault: a size that only the pipeline knows to be wrong reads as a failure of the stage."""
    odd = wanted(tiny, "a cat", 1)
    plan = type(odd.plan)(odd.plan.height + 1, odd.plan.width, 2, odd.plan.conditions, 1)
    with pytest.raises(InvalidRequestError, match="have to be divisible by"):
        tiny.model.draw([Wanted(plan, 1)], told)


def test_what_the_library_refuses_before_the_first_step_is_too(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: more steps than a solver was made for are told as a failure of the stage, without the field."""
    import diffusers

    monkeypatch.setitem(vars(tiny.model._pipeline), "scheduler", diffusers.LCMScheduler(original_inference_steps=3))
    with pytest.raises(InvalidRequestError, match="is smaller than `num_inference_steps`") as refused:
        tiny.model.draw([wanted(tiny, "a cat", 1)], told)
    assert refused.value.field == "num_inference_steps"
    assert refused.value.message.startswith("num_inference_steps: The combination")  # a route puts its own name there


def test_a_solver_that_fits_no_pipeline_is_not_the_callers_fault(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: callers hear of settings of the folder, as if they had asked for them."""
    import diffusers

    monkeypatch.setitem(
        vars(tiny.model._pipeline), "scheduler", diffusers.DDIMInverseScheduler(timestep_spacing="linspace")
    )
    with pytest.raises(ValueError, match="linspace is not supported"):
        tiny.model.draw([wanted(tiny, "a cat", 1)], told)


@pytest.mark.parametrize("where", ["prompt", "step"])
def test_what_fails_otherwise_is_the_stages(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Fault: callers hear that they asked for something wrong when a tokenizer, or a step, is broken."""

    def fails(*_given: Any, **_named: Any) -> None:
        raise ValueError("out of order")

    if where == "prompt":
        monkeypatch.setattr(tiny.model._pipeline.text_encoder, "forward", fails)
    with pytest.raises(ValueError, match="out of order"):
        tiny.model.draw([wanted(tiny, "a cat", 1)], fails if where == "step" else told)


def test_prompts_that_are_cut_are_not_told_to_the_log(tiny: Tiny) -> None:
    """Fault: a long prompt is written to the server's log, twice, a hundred thousand letters each time."""
    heard: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = heard.append  # type: ignore[assignment]
    logging.getLogger("diffusers").addHandler(handler)
    try:
        tiny.model.draw([wanted(tiny, "a cat " * 100, 1, num_inference_steps=1)], told)
    finally:
        logging.getLogger("diffusers").removeHandler(handler)
    assert heard == []


def test_a_picture_that_is_no_number(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: weights that give no numbers are served as black pictures."""
    decode = tiny.model._pipeline.vae.decode
    monkeypatch.setattr(
        tiny.model._pipeline.vae, "decode", lambda *given, **named: (decode(*given, **named)[0] * float("nan"),)
    )
    with pytest.raises(StageFailedError, match="no number"):
        tiny.model.draw([wanted(tiny, "a cat", 1)], told)


def test_a_request_that_is_cancelled_ends_within_a_step(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: two hundred steps, and the decoding, of a picture that nobody waits for; a pipeline that cannot be called again."""
    network = tiny.model._pipeline.components.get("unet") or tiny.model._pipeline.transformer
    passes: list[None] = []
    hook = network.register_forward_hook(lambda *_: passes.append(None))
    engine = CallEngine(stage_config(tiny.folder), tiny.model)
    params = {0: DiffusionParams(num_inference_steps=200, seed=3)}
    try:
        engine.add(_asked(request_of("a cat", "a", stage_params=params)))
        for _ in range(3):
            engine.step()
        engine.cancel("a")
        assert len(passes) == 3 and not engine.has_work()
        engine.add(_asked(request_of("a dog", "b", stage_params={0: DiffusionParams(num_inference_steps=4, seed=3)})))
        outputs = [output for _ in range(5) for output in engine.step()]
    finally:
        hook.remove()
    assert len(passes) == 7 and outputs[-1].finish_reason == "done" and outputs[-1].capture is not None
    assert_same(outputs[-1].capture.numpy("image"), by_diffusers(tiny, "a dog", 3))


def _asked(request: OmniRequest) -> StageRequest:
    return StageRequest(request, 1, 0, (0, 0), frozenset({CLIENT}))
