"""A diffusion model of a few numbers, in blocks. Its pictures depend on all that they should depend on: prompt, seed, size, steps,
guidance, negative prompt.

Words of a prompt that are orders, obeyed when its turn comes:

    refuse    the plan is refused             unreadable   the prompt cannot be encoded
    fail      the forward pass raises         undecodable  the picture cannot be decoded
    unsolved  the solver raises               sleep        a forward pass takes 50 ms
    exit      the process dies
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from omnistage.config.stage import DiffusionStageConfig, OutputEdge
from omnistage.core.errors import InvalidRequestError
from omnistage.core.params import DiffusionParams
from omnistage.core.payload import MultimodalPayload
from omnistage.core.request import OmniRequest
from omnistage.modeling.diffusion import Condition, Denoising, PicturePlan, Row
from omnistage.modeling.protocols import StageInput
from omnistage.wire.messages import CLIENT

CHANNELS = 8
PATCH = 8


@dataclass(frozen=True)
class Words:
    """An encoded condition: its text, and a vector [CHANNELS] that depends on it."""

    text: str
    vector: torch.Tensor


@dataclass(frozen=True)
class FakeFlow:
    """`hidden` [rows, tokens, CHANNELS]; `told` [rows, 1, CHANNELS] of prompt and timestep."""

    hidden: torch.Tensor
    told: torch.Tensor

    def with_hidden(self, hidden: torch.Tensor) -> FakeFlow:
        return dataclasses.replace(self, hidden=hidden)

    def select(self, rows: Sequence[int]) -> FakeFlow:
        return FakeFlow(self.hidden[list(rows)], self.told[list(rows)])


class Euler:
    """Remembers how often it was asked: one instance for two pictures would be seen. A little noise comes at every step."""

    def __init__(self, timesteps: Sequence[float], generator: torch.Generator, text: str) -> None:
        self.times = [*timesteps, 0.0]
        self.generator = generator
        self.text = text
        self.asked = 0

    def step(self, prediction: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        assert index == self.asked, f"step {index} came where step {self.asked} was due"
        if "unsolved" in self.text:
            raise ArithmeticError("no solution")
        self.asked += 1
        noise = torch.randn(latents.shape, generator=self.generator)
        return latents + (self.times[index + 1] - self.times[index]) * prediction + 0.01 * noise


def solver_of(picture: Denoising) -> Euler:
    assert isinstance(picture.solver, Euler)
    return picture.solver


class FakePainter:
    """A modeling.diffusion.DiffusionModel with blocks and previews. `calls` are the texts of every forward pass, `finished` the
    latents of decoded pictures by seed. Where there is a `hold`, decoding waits for it."""

    num_blocks = 4

    def __init__(self, *, one_timestep: bool = False) -> None:
        self.one_timestep = one_timestep
        weights = torch.Generator().manual_seed(7)
        self.blocks = torch.randn(self.num_blocks, CHANNELS, CHANNELS, generator=weights) / CHANNELS**0.5
        self.calls: list[list[str]] = []
        self.block_rows: list[int] = []
        self.encoded: list[list[str]] = []
        self.decoded: list[int] = []
        self.finished: dict[int, torch.Tensor] = {}
        self.hold: threading.Event | None = None

    def plan(self, request: OmniRequest, params: DiffusionParams, inputs: Mapping[str, Any]) -> PicturePlan:
        height, width = params.height or 16, params.width or 16
        for name, value in (("height", height), ("width", width)):
            if value % PATCH:
                nearest = max(PATCH, round(value / PATCH) * PATCH)
                raise InvalidRequestError.of(name, value, f"multiples of {PATCH}, the nearest of which is {nearest}")
        text = inputs["text"]
        if "refuse" in text:
            raise InvalidRequestError.of("prompt", text, "any other word")
        scale = 1.0 if params.true_cfg_scale is None else params.true_cfg_scale
        texts = [text, params.negative_prompt or ""] if scale != 1.0 else [text]
        conditions = tuple(Condition(f"words {one}", {"text": one}, 1 + len(one.split())) for one in texts)
        tokens = height * width // PATCH**2
        steps = params.num_inference_steps or 4
        return PicturePlan(height, width, steps, conditions, tokens, guidance=scale)

    def encode(self, conditions: Sequence[Condition]) -> list[Words]:
        texts = [condition.data["text"] for condition in conditions]
        self.encoded.append(texts)
        if any("unreadable" in text for text in texts):
            raise ValueError("a word that nobody can read")
        seeds = [sum(map(ord, text)) + 100 for text in texts]
        rows = torch.stack([torch.randn(CHANNELS, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
        return [Words(text, row) for text, row in zip(texts, rows, strict=True)]

    def prepare(self, plan: PicturePlan, branches: tuple[Words, ...], generator: torch.Generator) -> Denoising:
        latents = torch.randn(plan.tokens, CHANNELS, generator=generator)
        timesteps = [1.0 - step / plan.steps for step in range(plan.steps)]
        extras = {"height": plan.height, "width": plan.width, "grid": torch.zeros(plan.height, 1)}
        return Denoising(latents, timesteps, Euler(timesteps, generator, branches[0].text), branches, extras)

    def predict(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        flow = self.open(rows)
        for index in range(self.num_blocks):
            flow = self.block(index, flow)
        return self.close(flow)

    def guide(self, conditional: torch.Tensor, unconditional: torch.Tensor, scale: float) -> torch.Tensor:
        return unconditional + scale * (conditional - unconditional)

    def decode(self, pictures: Sequence[Denoising]) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
        if self.hold is not None:
            assert self.hold.wait(10.0), "nobody lets go"
        self.decoded.append(len(pictures))
        if any("undecodable" in picture.branches[0].text for picture in pictures):
            raise ValueError("a picture that nobody can see")
        self.finished.update({solver_of(one).generator.initial_seed(): one.latents for one in pictures})
        return [self._picture(picture, picture.latents) for picture in pictures]

    def preview(self, picture: Denoising, prediction: torch.Tensor, step: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return self._picture(picture, picture.latents - picture.timesteps[step] * prediction)

    def open(self, rows: Sequence[Row]) -> FakeFlow:
        texts = [row.condition.text for row in rows]
        self.calls.append(texts)
        self._obey(" ".join(texts))
        if self.one_timestep:
            assert len({row.timestep for row in rows}) == 1, "rows of several timesteps"
        told = [row.condition.vector + row.timestep for row in rows]
        return FakeFlow(torch.stack([row.picture.latents for row in rows]), torch.stack(told)[:, None])

    def signal(self, flow: FakeFlow) -> torch.Tensor:
        return flow.hidden + flow.told

    def block(self, index: int, flow: FakeFlow) -> FakeFlow:
        self.block_rows.append(len(flow.hidden))
        return flow.with_hidden(flow.hidden + 0.3 * torch.tanh((flow.hidden + flow.told) @ self.blocks[index]))

    def close(self, flow: FakeFlow) -> list[torch.Tensor]:
        return list(torch.tanh(flow.hidden))

    @staticmethod
    def _obey(text: str) -> None:
        if "fail" in text:
            raise RuntimeError("told to fail")
        if "exit" in text:
            os._exit(9)
        if "sleep" in text:
            time.sleep(0.05)

    @staticmethod
    def _picture(picture: Denoising, latents: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
        height, width = picture.extras["height"] // PATCH, picture.extras["width"] // PATCH
        colours = (torch.sigmoid(latents[:, :3]) * 255).round().to(torch.uint8).reshape(height, width, 3)
        return np.asarray(colours.numpy().repeat(PATCH, 0).repeat(PATCH, 1))


def load_painter(config: DiffusionStageConfig) -> FakePainter:
    return FakePainter(one_timestep=bool(config.extras.get("one_timestep")))


def load_words(config: DiffusionStageConfig) -> Any:
    """The processor of an entry stage."""

    def process(request: OmniRequest) -> list[StageInput]:
        return [StageInput({"text": request.prompt.text or ""})]

    return process


def words_bridge(
    state: str | None, source: int, seq: int, payload: MultimodalPayload | None, last: bool
) -> tuple[str, list[StageInput]]:
    """The whole text that came, at its end."""
    text = (state or "") + (payload.metadata["text"] if payload is not None else "")
    return text, [StageInput({"text": text})] if last and text else []


def painter_config(**changes: Any) -> DiffusionStageConfig:
    """Stage 0, "painter": pictures for the caller."""
    values: dict[str, Any] = {
        "stage_id": 0,
        "model_stage": "painter",
        "model_path": "",
        "process": "main",
        "loader": "tests.drawing.painter:load_painter",
        "processor": "tests.drawing.painter:load_words",
        "final_output_type": "image",
        "outputs": (OutputEdge(target=CLIENT),),
    }
    return DiffusionStageConfig(**(values | changes))
