"""A diffusion stage over the fake painter, and what tests ask of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from omnistage.config.stage import DiffusionStageConfig
from omnistage.core.params import DiffusionParams
from omnistage.core.payload import MultimodalPayload
from omnistage.stages.base import StageOutput, StageRequest
from omnistage.stages.diffusion.caches.table import step_cache
from omnistage.stages.diffusion.engine import DiffusionEngine
from omnistage.stages.diffusion.runner import DiffusionRunner
from omnistage.wire.messages import CLIENT
from tests.drawing.painter import FakePainter, load_words, painter_config, words_bridge
from tests.fakes import request_of

MOST_STEPS = 2000


class DrivenStage:
    """An engine of pictures, and what it has said."""

    engine: Any

    def __init__(self) -> None:
        self.outputs: list[StageOutput] = []

    def add(
        self,
        request_id: str = "r",
        text: str = "a cat",
        *,
        age: int = 0,
        priority: int = 0,
        stream: bool = False,
        **ask: Any,
    ) -> None:
        request = request_of(
            text, request_id, stage_params={0: DiffusionParams(**ask)}, stream=stream, wants=("image",)
        )
        self.engine.add(StageRequest(request, 1, 0, (priority, age), frozenset({CLIENT})))

    def feed(self, text: str | None, request_id: str = "r", seq: int = 0, *, last: bool = False) -> None:
        item = MultimodalPayload(metadata={"text": text}) if text is not None else None
        self.engine.feed(request_id, 7, seq, item, last=last)

    def step(self, count: int = 1) -> list[StageOutput]:
        made = [output for _ in range(count) for output in self.engine.step()]
        self.outputs.extend(made)
        return made

    def run(self) -> None:
        """Until nothing is left to do."""
        for _ in range(MOST_STEPS):
            if not self.engine.has_work():
                return
            self.step()
        raise AssertionError("the stage works without end")

    def pictures(self) -> dict[tuple[str, int], np.ndarray[Any, Any]]:
        """The finished ones."""
        shown = [output for output in self.outputs if output.capture is not None and "seed" in output.capture.metadata]
        return {
            (one.request_id, one.capture.metadata["index"]): one.capture.numpy("image") for one in shown if one.capture
        }

    def ended(self) -> dict[str, str]:
        """Why each request ended: its reason, or the message of its error."""
        found: dict[str, str] = {}
        for output in self.outputs:
            if output.error is not None:
                found[output.request_id] = output.error.message
            elif output.finish_reason is not None:
                found[output.request_id] = output.finish_reason
        return found


class Stage(DrivenStage):
    """An engine that draws pictures step by step."""

    engine: DiffusionEngine

    def __init__(
        self, config: DiffusionStageConfig | None = None, model: FakePainter | None = None, *, entry: bool = True
    ) -> None:
        super().__init__()
        config = config or painter_config()
        self.model = model or FakePainter()
        runner = DiffusionRunner(self.model, step_cache(config, self.model))
        bridge, processor = (None, load_words(config)) if entry else (words_bridge, None)
        self.engine = DiffusionEngine(config, runner, bridge, processor)


def latents_alone(config: DiffusionStageConfig | None = None, **ask: Any) -> dict[int, torch.Tensor]:
    """The latents, by seed, of a request that has the stage to itself."""
    stage = Stage(config)
    stage.add(**ask)
    stage.run()
    assert stage.ended() == {"r": "done"}
    return stage.model.finished
