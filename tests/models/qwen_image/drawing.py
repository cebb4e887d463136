"""What is asked of Qwen-Image, and what diffusers makes of the same ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from omnistage.core.params import DiffusionParams
from omnistage.core.request import Media, OmniRequest, Prompt
from omnistage.core.spec import TensorSpec
from tests.models.easel import Drawn, KeptLatents


def as_media(picture: np.ndarray[Any, Any], where: str = "image", kind: Any = "image") -> Media:
    """A raw picture."""
    return Media(kind=kind, data=picture.tobytes(), array=TensorSpec("uint8", picture.shape), where=where)


@dataclass(frozen=True)
class Asked:
    """An `easel.Asked`."""

    prompt: str = "a cat"
    height: int | None = 32
    width: int | None = 32
    steps: int = 4
    seed: int = 1
    scale: float | None = None
    negative: str | None = None
    joins: int = 0
    leaves_at: int | None = None
    pictures: tuple[np.ndarray[Any, Any], ...] = ()
    mask: np.ndarray[Any, Any] | None = None

    @property
    def params(self) -> DiffusionParams:
        return DiffusionParams(
            height=self.height,
            width=self.width,
            num_inference_steps=self.steps,
            true_cfg_scale=self.scale,
            negative_prompt=self.negative,
            seed=self.seed,
        )

    @property
    def request(self) -> OmniRequest:
        media = [as_media(picture, f"image[{at}]") for at, picture in enumerate(self.pictures)]
        if self.mask is not None:
            media.append(as_media(self.mask, "mask", "mask"))
        prompt = Prompt(text=self.prompt, media=tuple(media))
        return OmniRequest(request_id="r", prompt=prompt, wants=("image",), stage_params={0: self.params})


def by_diffusers(pipeline: Any, asked: Asked, **more: Any) -> Drawn:
    """One picture alone."""
    ask = {
        "prompt": asked.prompt,
        "negative_prompt": asked.negative,
        "true_cfg_scale": 1.0 if asked.scale is None else asked.scale,
        "height": asked.height,
        "width": asked.width,
        "num_inference_steps": asked.steps,
        **more,
    }
    keep = KeptLatents()
    generator = torch.Generator().manual_seed(asked.seed)
    made = pipeline(**ask, generator=generator, output_type="pil", callback_on_step_end=keep).images[0]
    return Drawn(keep.latents[0], np.asarray(made))
