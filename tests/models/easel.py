"""A small loop around a model that draws, with what a stage does to pictures and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from omnistage.config.stage import DiffusionStageConfig
from omnistage.core.params import DiffusionParams
from omnistage.core.request import OmniRequest
from omnistage.modeling.diffusion import Denoising, PicturePlan, Row


def stage_config(folder: Any, **more: Any) -> DiffusionStageConfig:
    return DiffusionStageConfig(
        stage_id=0, model_stage="painter", model_path=str(folder), loader="", process="painter", **more
    )


class Asked(Protocol):
    """One request for one picture. `joins`: the step of the loop at which it comes; `leaves_at`: of its own steps, the first that
    it does not live to see."""

    @property
    def seed(self) -> int: ...

    @property
    def joins(self) -> int: ...

    @property
    def leaves_at(self) -> int | None: ...

    @property
    def params(self) -> DiffusionParams: ...

    @property
    def request(self) -> OmniRequest: ...


@dataclass
class Drawn:
    """`latents` at the end, `picture` [height, width, 3] uint8."""

    latents: torch.Tensor
    picture: np.ndarray[Any, Any]


@dataclass
class Easel:
    """Requests that come and go at every step, the ones whose rows fit together in one forward pass."""

    model: Any
    processor: Any
    previews: list[np.ndarray[Any, Any]] = field(default_factory=list)

    def plan(self, asked: Asked) -> PicturePlan:
        (made,) = self.processor(asked.request)
        planned: PicturePlan = self.model.plan(asked.request, asked.params, made.data)
        return planned

    @torch.inference_mode()
    def begin(self, asked: Asked) -> tuple[PicturePlan, Denoising]:
        plan = self.plan(asked)
        branches = tuple(self.model.encode(plan.conditions))
        return plan, self.model.prepare(plan, branches, torch.Generator().manual_seed(asked.seed))

    @torch.inference_mode()
    def draw(self, asks: Sequence[Asked], *, with_previews: bool = False) -> list[Drawn | None]:
        """In the order of `asks`; None for those that left."""
        made: dict[int, Drawn] = {}
        running: dict[int, tuple[PicturePlan, Denoising, int]] = {}
        time = 0
        while running or any(asked.joins >= time for asked in asks):
            for at, asked in enumerate(asks):
                if asked.joins == time:
                    running[at] = (*self.begin(asked), 0)
            for batch in self._batches(running):
                self._step(batch, running, with_previews)
            for at, (plan, picture, step) in list(running.items()):
                if step == plan.steps:
                    made[at] = Drawn(picture.latents, self.model.decode([picture])[0])
                if step in (plan.steps, asks[at].leaves_at):
                    del running[at]
            time += 1
        return [made.get(at) for at in range(len(asks))]

    def _batches(self, running: Mapping[int, tuple[PicturePlan, Denoising, int]]) -> list[list[int]]:
        kinds: dict[Any, list[int]] = {}
        for at, (_, picture, _) in running.items():
            tensors = {"latents": picture.latents, **picture.extras}
            shapes = [(name, one.shape) for name, one in tensors.items() if isinstance(one, torch.Tensor)]
            kinds.setdefault(tuple(shapes), []).append(at)
        return list(kinds.values())

    def _step(
        self, batch: list[int], running: dict[int, tuple[PicturePlan, Denoising, int]], with_previews: bool
    ) -> None:
        rows = [
            Row(running[at][1], branch, running[at][2])
            for at in batch
            for branch in range(len(running[at][0].conditions))
        ]
        found = iter(self.model.predict(rows))
        for at in batch:
            plan, picture, step = running[at]
            predictions = [next(found) for _ in plan.conditions]
            prediction = predictions[0]
            if len(predictions) == 2:
                prediction = self.model.guide(predictions[0], predictions[1], plan.guidance)
            if with_previews:
                self.previews.append(self.model.preview(picture, prediction, step))
            picture.latents = picture.solver.step(prediction, step, picture.latents)
            running[at] = plan, picture, step + 1


@dataclass
class KeptLatents:
    """What a pipeline of diffusers calls behind every step: the last latents that it was told."""

    latents: list[torch.Tensor] = field(default_factory=list)

    def __call__(self, _pipeline: Any, _step: int, _time: Any, told: dict[str, Any]) -> dict[str, Any]:
        self.latents[:] = [told["latents"][0]]
        return {}


def assert_same(ours: Drawn | None, theirs: Drawn) -> None:
    """Latents to 1e-5, pixels to one grey level."""
    assert ours is not None
    assert float((ours.latents - theirs.latents).abs().max()) <= 1e-5
    assert ours.picture.shape == theirs.picture.shape and ours.picture.dtype == np.uint8
    assert int(np.abs(ours.picture.astype(int) - theirs.picture.astype(int)).max()) <= 1
