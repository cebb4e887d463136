"""What is asked of FLUX.1, and what diffusers makes of the same ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from omnistage.core.params import DiffusionParams
from omnistage.core.request import OmniRequest, Prompt
from tests.models.easel import Drawn, KeptLatents


@dataclass(frozen=True)
class Asked:
    """An `easel.Asked`. `guidance` is what the transformer reads, `scale` that of the negative prompt."""

    prompt: str = "a cat"
    height: int | None = 32
    width: int | None = 32
    steps: int | None = 4
    seed: int = 1
    guidance: float | None = None
    scale: float | None = None
    negative: str | None = None
    joins: int = 0
    leaves_at: int | None = None

    @property
    def params(self) -> DiffusionParams:
        return DiffusionParams(
            height=self.height,
            width=self.width,
            num_inference_steps=self.steps,
            guidance_scale=self.guidance,
            true_cfg_scale=self.scale,
            negative_prompt=self.negative,
            seed=self.seed,
        )

    @property
    def request(self) -> OmniRequest:
        return OmniRequest(
            request_id="r", prompt=Prompt(text=self.prompt), wants=("image",), stage_params={0: self.params}
        )


MIXED = (
    Asked(steps=4, scale=3.0, negative="blurry text", guidance=2.0),
    Asked(prompt="two dogs on a red table", seed=2, steps=3, width=48),
    Asked(prompt="a photo", seed=3, steps=5, scale=2.5, negative=""),
    Asked(prompt="a fox in the snow", seed=4, steps=2, joins=1),
    Asked(prompt="a cat and two dogs", seed=5, steps=3, width=48, scale=1.0, negative="snow", joins=2),
    Asked(prompt="a red fox", seed=6, steps=2, width=48, scale=1.5, negative="a table", guidance=7.5, joins=2),
    Asked(prompt="colours", seed=7, steps=6, joins=2, leaves_at=2),
    Asked(prompt="0123456789 dogs", seed=8, steps=2, joins=3, guidance=0.0),
)
"""Two sizes; the guidance that a transformer reads is for those that read one."""


def by_diffusers(pipeline: Any, asked: Asked) -> Drawn:
    """One picture alone. A prompt has as many tokens as the model's authors have it."""
    guided = pipeline.transformer.config.guidance_embeds
    keep = KeptLatents()
    made = pipeline(
        prompt=asked.prompt,
        negative_prompt=asked.negative,
        true_cfg_scale=1.0 if asked.scale is None else asked.scale,
        height=asked.height,
        width=asked.width,
        num_inference_steps=asked.steps,
        guidance_scale=3.5 if asked.guidance is None else asked.guidance,
        max_sequence_length=512 if guided else 256,
        generator=torch.Generator().manual_seed(asked.seed),
        output_type="pil",
        callback_on_step_end=keep,
    )
    assert asked.height is not None and asked.width is not None
    multiple = pipeline.vae_scale_factor * 2
    return Drawn(
        keep.latents[0].unflatten(0, (asked.height // multiple, asked.width // multiple)), np.asarray(made.images[0])
    )
