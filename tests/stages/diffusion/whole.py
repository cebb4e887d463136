"""A model that draws whole pictures in one call, and a stage of it.

A picture is one colour, which depends on prompt, negative prompt and seed. Words of a prompt that are orders:

    refuse   the plan is refused          fail    the call raises after its second step
    short    a picture is missing         ragged  a picture that is none
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from omnistage.config.stage import DiffusionStageConfig
from omnistage.core.errors import InvalidRequestError
from omnistage.core.params import DiffusionParams
from omnistage.core.payload import MultimodalPayload
from omnistage.core.request import OmniRequest
from omnistage.modeling.diffusion import AfterStep, Condition, PicturePlan, Wanted
from omnistage.stages.diffusion.call_engine import CallEngine
from tests.drawing.painter import load_words, painter_config, words_bridge
from tests.stages.diffusion.stage import DrivenStage


class FakeWhole:
    """A modeling.diffusion.WholeModel. `calls` are the texts of every call, `ended` how many steps each had taken."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.ended: list[int] = []

    def plan(self, _request: OmniRequest, params: DiffusionParams, inputs: Mapping[str, Any]) -> PicturePlan:
        text = inputs["text"]
        if "refuse" in text:
            raise InvalidRequestError.of("prompt", text, "any other word")
        texts = [text] if params.negative_prompt is None else [text, params.negative_prompt]
        height, width = params.height or 16, params.width or 16
        conditions = tuple(Condition(one, {"text": one}, 0) for one in texts)
        extras = {} if params.guidance_scale is None else {"guidance_scale": params.guidance_scale}
        tokens = height * width // 64
        return PicturePlan(height, width, params.num_inference_steps or 4, conditions, tokens, extras=extras)

    def draw(self, wanted: Sequence[Wanted], after_step: AfterStep) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
        texts = [one.plan.conditions[0].data["text"] for one in wanted]
        self.calls.append(texts)
        self.ended.append(0)
        place = len(self.ended) - 1
        for step in range(1, wanted[0].plan.steps + 1):
            self.ended[place] = step
            after_step(step, wanted[0].plan.steps)
            if step == 2 and any("fail" in text for text in texts):
                raise ArithmeticError("told to fail")
        pictures = [drawn(one) for one in wanted]
        if any("ragged" in text for text in texts):
            pictures = [
                picture[0] if "ragged" in text else picture for picture, text in zip(pictures, texts, strict=True)
            ]
        return pictures[1:] if any("short" in text for text in texts) else pictures


def drawn(one: Wanted) -> np.ndarray[Any, np.dtype[np.uint8]]:
    told = "/".join(condition.data["text"] for condition in one.plan.conditions)
    return np.full((one.plan.height, one.plan.width, 3), (sum(map(ord, told)) + 17 * one.seed) % 256, np.uint8)


class WholeStage(DrivenStage):
    """A stage of such a model, with what tests ask of it."""

    def __init__(self, config: DiffusionStageConfig | None = None, *, entry: bool = True) -> None:
        super().__init__()
        config = config or painter_config()
        self.model = FakeWhole()
        bridge, processor = (None, load_words(config)) if entry else (words_bridge, None)
        self.engine = CallEngine(config, self.model, bridge, processor)

    def told_steps(self) -> list[tuple[str, int, int]]:
        """(request, picture, step) of all progress."""
        captures = [(output.request_id, output.capture) for output in self.outputs]
        return [(name, *_place(made)) for name, made in captures if made is not None and "progress" in made.metadata]


def _place(made: MultimodalPayload) -> tuple[int, int]:
    progress = made.metadata["progress"]
    return progress["index"], progress["step"]
