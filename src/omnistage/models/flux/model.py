"""FLUX.1 as a diffusion stage runs it: two text encoders, transformer, solver and autoencoder, each called with many rows at once.

A picture's latents are [tall, wide, channels], a token of 2 x 2 latents at each place: the shape says where tokens stand, because
the library's transformer takes one table of places for a batch, so that pictures share one if they are of one shape, not only of
one count of tokens. Knows no tokenizer, queue or file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from omnistage.core.params import DiffusionParams
from omnistage.core.request import OmniRequest
from omnistage.modeling.diffusion import Condition, Denoising, PicturePlan, Row
from omnistage.modeling.pixels import pixels_of
from omnistage.models.flux.asks import checked
from omnistage.models.flux.settings import PATCH, FluxSettings
from omnistage.models.flux.solver import EulerSolver, schedule_of
from omnistage.models.flux.transformer import FluxFlow, RowInput, Transformer

Picture = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Parts:
    """Modules of the libraries: CLIPTextModel, T5EncoderModel, AutoencoderKL; the scheduler is FlowMatchEulerDiscreteScheduler."""

    clip: Any
    t5: Any
    transformer: Transformer
    vae: Any
    scheduler: Any
    settings: FluxSettings


class Flux:
    """A DiffusionModel, PreviewingModel and BlockedModel of modeling.diffusion."""

    one_timestep = False

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    # ---- before the first step ---------------------------------------------------------------------------------------

    def plan(self, request: OmniRequest, params: DiffusionParams, inputs: Mapping[str, Any]) -> PicturePlan:
        """`inputs` as processor.py makes them."""
        settings = self.parts.settings
        ask = checked(params, settings)
        grid = (ask.height // settings.multiple, ask.width // settings.multiple)
        branches = ("positive",) if ask.negative is None else ("positive", "negative")
        return PicturePlan(
            height=ask.height,
            width=ask.width,
            steps=ask.steps,
            conditions=tuple(_condition(inputs, name) for name in branches),
            tokens=settings.t5_tokens + grid[0] * grid[1],
            guidance=ask.scale,
            extras={"grid": grid, "guidance": ask.guidance},
        )

    def encode(self, conditions: Sequence[Condition]) -> list[Any]:
        """For each {"text": [tokens, d], "pooled": [d]}, as the blocks read them."""
        clip, t5 = (
            torch.from_numpy(np.stack([one.data[name] for one in conditions])).long() for name in ("clip", "t5")
        )
        # Nothing tells the encoders or the transformer which rows are padding: the models were trained to read it.
        rows, pooled = self.parts.t5(t5).last_hidden_state, self.parts.clip(clip).pooler_output
        texts, wholes = self.parts.transformer.embed_prompts(rows, pooled)
        return [{"text": text, "pooled": whole} for text, whole in zip(texts, wholes, strict=True)]

    def prepare(self, plan: PicturePlan, branches: tuple[Any, ...], generator: torch.Generator) -> Denoising:
        tall, wide = plan.extras["grid"]
        noise = torch.randn((self.parts.settings.latents, tall * PATCH, wide * PATCH), generator=generator)
        levels, times = schedule_of(self.parts.scheduler, plan.steps, tall * wide)
        extras = {"guidance": plan.extras["guidance"]}
        return Denoising(packed(noise), times, EulerSolver(levels), branches, extras)

    # ---- steps ---------------------------------------------------------------------------------------------------------

    def predict(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        flow = self.open(rows)
        for index in range(self.num_blocks):
            flow = self.block(index, flow)
        return self.close(flow)

    @property
    def num_blocks(self) -> int:
        return self.parts.transformer.num_blocks

    def open(self, rows: Sequence[Row]) -> FluxFlow:
        return self.parts.transformer.open([_row_input(row) for row in rows])

    def signal(self, flow: FluxFlow) -> torch.Tensor:
        return self.parts.transformer.signal(flow)

    def block(self, index: int, flow: FluxFlow) -> FluxFlow:
        return self.parts.transformer.block(index, flow)

    def close(self, flow: FluxFlow) -> list[torch.Tensor]:
        return self.parts.transformer.close(flow)

    def guide(self, conditional: torch.Tensor, unconditional: torch.Tensor, scale: float) -> torch.Tensor:
        """Classifier-free guidance (Ho and Salimans, 2022)."""
        return unconditional + scale * (conditional - unconditional)

    # ---- pictures ------------------------------------------------------------------------------------------------------

    def decode(self, pictures: Sequence[Denoising]) -> list[Picture]:
        return self._drawn(torch.stack([picture.latents for picture in pictures]))

    def preview(self, picture: Denoising, prediction: torch.Tensor, step: int) -> Picture:
        solver = picture.solver
        assert isinstance(solver, EulerSolver)
        (drawn,) = self._drawn(solver.clean(prediction, step, picture.latents)[None])
        return drawn

    def _drawn(self, latents: torch.Tensor) -> list[Picture]:
        """[R, tall, wide, channels] -> R pictures."""
        vae = self.parts.vae
        scaled = unpacked(latents) / vae.config.scaling_factor + (vae.config.shift_factor or 0.0)
        return pixels_of(vae.decode(scaled.to(vae.dtype), return_dict=False)[0])


def packed(latents: torch.Tensor) -> torch.Tensor:
    """[channels, 2 tall, 2 wide] -> tokens [tall, wide, 4 channels]: of each channel the four latents of a token."""
    channels, tall, wide = latents.shape
    cut = latents.reshape(channels, tall // PATCH, PATCH, wide // PATCH, PATCH)
    return cut.permute(1, 3, 0, 2, 4).flatten(2)


def unpacked(tokens: torch.Tensor) -> torch.Tensor:
    """[R, tall, wide, 4 channels] -> what `packed` was given, R times."""
    cut = tokens.reshape(*tokens.shape[:3], -1, PATCH, PATCH)
    return cut.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def _condition(inputs: Mapping[str, Any], name: str) -> Condition:
    ids = {encoder: inputs[f"{name}_{encoder}"] for encoder in ("clip", "t5")}
    return Condition(inputs[f"{name}_key"], ids, sum(map(len, ids.values())))


def _row_input(row: Row) -> RowInput:
    picture, condition = row.picture, row.condition
    return RowInput(picture.latents, condition["text"], condition["pooled"], row.timestep, picture.extras["guidance"])
