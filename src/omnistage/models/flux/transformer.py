"""The library's FluxTransformer2DModel in parts: what stands before its blocks, each block, and what follows them.

A row is one branch of one picture: `hidden` [tokens of the picture, d] and `text` [tokens of the prompt, d]. Blocks change both,
the first ones as two streams, the others as one. Rows of a batch have timesteps, guidance and text of their own; where their
tokens stand is one table [tokens, 3] for all, so they have one grid. Knows no requests, solvers or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

_TIME_SCALE = 1000.0


@dataclass(frozen=True, slots=True)
class RowInput:
    """`latents` [tall, wide, channels]; `text` [length, d] and `pooled` [d] as `embed_prompts` made them; `timestep` in [0, 1];
    `guidance` of no meaning to a transformer that reads none."""

    latents: torch.Tensor
    text: torch.Tensor
    pooled: torch.Tensor
    timestep: float
    guidance: float


@dataclass(frozen=True, slots=True)
class FluxFlow:
    """A `modeling.diffusion.Flow`. `time` [R, d]: timestep, guidance and the whole of a prompt, by which all blocks are modulated.
    `turns`: cosines and sines [S, head] of the places of text and picture. `grid`: tokens in height and width."""

    hidden: torch.Tensor
    text: torch.Tensor
    time: torch.Tensor
    turns: tuple[torch.Tensor, torch.Tensor]
    grid: tuple[int, int]

    def with_hidden(self, hidden: torch.Tensor) -> FluxFlow:
        return replace(self, hidden=hidden)

    def select(self, rows: Sequence[int]) -> FluxFlow:
        picked = torch.tensor(rows, device=self.hidden.device)
        return replace(self, hidden=self.hidden[picked], text=self.text[picked], time=self.time[picked])


class Transformer:
    """See `modeling.diffusion.BlockedModel`."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._blocks = (*module.transformer_blocks, *module.single_transformer_blocks)
        self.num_blocks = len(self._blocks)

    def embed_prompts(self, rows: torch.Tensor, pooled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`rows` [R, length, text size], `pooled` [R, pooled size] -> [R, length, d], [R, d]: the same at all steps, so they are
        made once. Nothing behind them is the same: every block modulates the text by the timestep."""
        return self._module.context_embedder(rows), self._module.time_text_embed.text_embedder(pooled)

    def open(self, rows: Sequence[RowInput]) -> FluxFlow:
        latents = torch.stack([row.latents for row in rows])
        hidden = self._module.x_embedder(latents.flatten(1, 2).to(self._module.dtype))
        text = torch.stack([row.text for row in rows])
        tall, wide = latents.shape[1:3]
        turns = self._module.pos_embed(_places(tall, wide, text.shape[1]))
        return FluxFlow(hidden, text, self._times(rows), turns, (tall, wide))

    def signal(self, flow: FluxFlow) -> torch.Tensor:
        modulated: torch.Tensor = self._blocks[0].norm1(flow.hidden, emb=flow.time)[0]
        return modulated

    def block(self, index: int, flow: FluxFlow) -> FluxFlow:
        text, hidden = self._blocks[index](
            hidden_states=flow.hidden, encoder_hidden_states=flow.text, temb=flow.time, image_rotary_emb=flow.turns
        )
        return replace(flow, hidden=hidden, text=text)

    def close(self, flow: FluxFlow) -> list[torch.Tensor]:
        """Predictions [tall, wide, channels], float32."""
        made = self._module.proj_out(self._module.norm_out(flow.hidden, flow.time))
        return list(made.float().unflatten(1, flow.grid).unbind(0))

    def _times(self, rows: Sequence[RowInput]) -> torch.Tensor:
        """[R, d]"""
        parts = self._module.time_text_embed
        pooled = torch.stack([row.pooled for row in rows])

        def waves(numbers: Sequence[float]) -> torch.Tensor:
            made: torch.Tensor = parts.time_proj(torch.tensor(numbers, dtype=torch.float32) * _TIME_SCALE)
            return made.to(pooled.dtype)

        times: torch.Tensor = parts.timestep_embedder(waves([row.timestep for row in rows]))
        if self._module.config.guidance_embeds:
            times = times + parts.guidance_embedder(waves([row.guidance for row in rows]))
        return times + pooled


def _places(tall: int, wide: int, length: int) -> torch.Tensor:
    """[length + tall x wide, 3]: a prompt stands at the corner, a token of the picture at its line and column."""
    lines = torch.arange(tall, dtype=torch.float32)[:, None].expand(tall, wide)
    columns = torch.arange(wide, dtype=torch.float32).expand(tall, wide)
    picture = torch.stack([torch.zeros(tall, wide), lines, columns], dim=-1).flatten(0, 1)
    return torch.cat([torch.zeros(length, 3), picture])
