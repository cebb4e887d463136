"""Qwen-Image as a diffusion stage runs it: text encoder, transformer, solver and autoencoder, each called with many rows at once.

A picture's latents are tokens [height / m * width / m, channels] of m x m pixels. Pictures of one count of tokens share a batch,
whatever their shapes: each row has its own rotations. Knows no tokenizer, queue or file.
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
from omnistage.models.qwen_image.asks import Ask, checked
from omnistage.models.qwen_image.schedule import EulerSolver, noise_levels, timesteps
from omnistage.models.qwen_image.settings import PATCH, Grid, PictureSizes, ScheduleShape
from omnistage.models.qwen_image.text_encoder import TextEncoder, TextInput
from omnistage.models.qwen_image.transformer import ImageFlow, RowInput, Transformer
from omnistage.models.qwen_image.vae import Vae

Picture = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Parts:
    """`dropped`: rows of the text encoder that belong to the words around a prompt."""

    text_encoder: TextEncoder
    transformer: Transformer
    vae: Vae
    schedule: ScheduleShape
    sizes: PictureSizes
    dropped: int


class QwenImage:
    """A DiffusionModel, PreviewingModel and BlockedModel of modeling.diffusion."""

    one_timestep = False

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    # ---- before the first step ---------------------------------------------------------------------------------------

    def plan(self, request: OmniRequest, params: DiffusionParams, inputs: Mapping[str, Any]) -> PicturePlan:
        """`inputs` as processor.py makes them."""
        ask = checked(params, self.parts.sizes)
        conditions = tuple(
            Condition(inputs[f"{name}_key"], {"ids": inputs[f"{name}_ids"]}, len(inputs[f"{name}_ids"]))
            for name in branches_of(ask)
        )
        return self._planned(ask, conditions, {"grids": (self._grid(ask.height, ask.width),)})

    def encode(self, conditions: Sequence[Condition]) -> list[Any]:
        """For each {"text": [tokens, d]}, as the first block reads it."""
        inputs = [TextInput(torch.tensor(condition.data["ids"], dtype=torch.int64)) for condition in conditions]
        return [{"text": self._text_rows(hidden)} for hidden in self.parts.text_encoder.encode(inputs)]

    def prepare(self, plan: PicturePlan, branches: tuple[Any, ...], generator: torch.Generator) -> Denoising:
        noise = self._noise(plan.extras["grids"][0], generator)
        levels = noise_levels(self.parts.schedule, plan.steps, len(noise))
        return self._begun(noise, EulerSolver(levels), branches, {"grids": plan.extras["grids"]})

    # ---- steps ---------------------------------------------------------------------------------------------------------

    def predict(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        flow = self.open(rows)
        for index in range(self.num_blocks):
            flow = self.block(index, flow)
        return self.close(flow)

    @property
    def num_blocks(self) -> int:
        return self.parts.transformer.shape.num_layers

    def open(self, rows: Sequence[Row]) -> ImageFlow:
        return self.parts.transformer.open([_row_input(row) for row in rows])

    def signal(self, flow: ImageFlow) -> torch.Tensor:
        return self.parts.transformer.signal(flow)

    def block(self, index: int, flow: ImageFlow) -> ImageFlow:
        return self.parts.transformer.block(index, flow)

    def close(self, flow: ImageFlow) -> list[torch.Tensor]:
        return self.parts.transformer.close(flow)

    def guide(self, conditional: torch.Tensor, unconditional: torch.Tensor, scale: float) -> torch.Tensor:
        """Classifier-free guidance (Ho and Salimans, 2022) whose result is as long, token by token, as without it."""
        joined = unconditional + scale * (conditional - unconditional)
        lengths = [torch.linalg.vector_norm(one, dim=-1, keepdim=True) for one in (conditional, joined)]
        scaled: torch.Tensor = joined * (lengths[0] / lengths[1])
        return scaled

    # ---- pictures ------------------------------------------------------------------------------------------------------

    def decode(self, pictures: Sequence[Denoising]) -> list[Picture]:
        return self._drawn([picture.latents for picture in pictures], [_grids(picture)[0] for picture in pictures])

    def preview(self, picture: Denoising, prediction: torch.Tensor, step: int) -> Picture:
        solver = picture.solver
        assert isinstance(solver, EulerSolver)
        (drawn,) = self._drawn([solver.clean(prediction, step, picture.latents)], [_grids(picture)[0]])
        return drawn

    def _drawn(self, latents: Sequence[torch.Tensor], grids: Sequence[Grid]) -> list[Picture]:
        """Pictures of equal sizes are one batch."""
        made: dict[int, Picture] = {}
        for grid in dict.fromkeys(grids):
            places = [place for place, own in enumerate(grids) if own == grid]
            batch = self.parts.vae.decode(torch.stack([unpacked(latents[place], grid) for place in places]))
            made.update(zip(places, pixels_of(batch), strict=True))
        return [made[place] for place in range(len(grids))]

    # ---- parts ---------------------------------------------------------------------------------------------------------

    def _grid(self, height: int, width: int) -> Grid:
        multiple = self.parts.sizes.multiple
        return height // multiple, width // multiple

    def _planned(self, ask: Ask, conditions: tuple[Condition, ...], extras: Mapping[str, Any]) -> PicturePlan:
        text = max(condition.tokens for condition in conditions) - self.parts.dropped
        return PicturePlan(
            height=ask.height,
            width=ask.width,
            steps=ask.steps,
            conditions=conditions,
            tokens=text + sum(tall * wide for tall, wide in extras["grids"]),
            guidance=ask.scale,
            extras=extras,
        )

    def _text_rows(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.parts.transformer.embed_text(hidden[self.parts.dropped :])

    def _noise(self, grid: Grid, generator: torch.Generator) -> torch.Tensor:
        channels = self.parts.transformer.shape.channels // PATCH**2
        return packed(torch.randn((channels, grid[0] * PATCH, grid[1] * PATCH), generator=generator))

    def _begun(
        self, noise: torch.Tensor, solver: EulerSolver, branches: tuple[Any, ...], extras: dict[str, Any]
    ) -> Denoising:
        times = timesteps(self.parts.schedule, solver.noise)
        return Denoising(latents=noise, timesteps=times, solver=solver, branches=branches, extras=extras)


def branches_of(ask: Ask) -> tuple[str, ...]:
    """Of a picture: that of the prompt, and the negative one where there is guidance."""
    return ("positive",) if ask.negative is None else ("positive", "negative")


def packed(latents: torch.Tensor) -> torch.Tensor:
    """[channels, 2 h, 2 w] -> tokens [h w, 4 channels]: of each channel the four latents of a token."""
    channels, tall, wide = latents.shape
    cut = latents.reshape(channels, tall // PATCH, PATCH, wide // PATCH, PATCH)
    return cut.permute(1, 3, 0, 2, 4).reshape(-1, channels * PATCH**2)


def unpacked(tokens: torch.Tensor, grid: Grid) -> torch.Tensor:
    """What `packed` was given, of a picture of h x w = `grid` tokens."""
    tall, wide = grid
    cut = tokens.reshape(tall, wide, -1, PATCH, PATCH)
    return cut.permute(2, 0, 3, 1, 4).reshape(-1, tall * PATCH, wide * PATCH)


def _grids(picture: Denoising) -> tuple[Grid, ...]:
    grids: tuple[Grid, ...] = picture.extras["grids"]
    return grids


def _row_input(row: Row) -> RowInput:
    picture = row.picture
    return RowInput(
        picture.latents, picture.extras.get("references"), _grids(picture), row.condition["text"], row.timestep
    )
