"""Qwen-Image-Edit as a diffusion stage runs it: Qwen-Image with pictures that the text encoder sees and the transformer attends to.

A picture's references are part of what its prompt is encoded to, so they are encoded once for all pictures of a request, and for
the next request that gives them with the same words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from omnistage.core.errors import InvalidRequestError
from omnistage.core.params import DiffusionParams
from omnistage.core.request import OmniRequest
from omnistage.modeling.diffusion import Condition, Denoising, PicturePlan
from omnistage.modeling.patches import Pixels, image_colours, patchify
from omnistage.modeling.pictures import Picture
from omnistage.models.qwen_image.asks import checked
from omnistage.models.qwen_image.model import Parts, QwenImage, branches_of, packed
from omnistage.models.qwen_image.schedule import EulerSolver, MaskedSolver, noise_levels
from omnistage.models.qwen_image.settings import PATCH
from omnistage.models.qwen_image.text_encoder import TextInput
from omnistage.models.qwen_image.vision import VisionEncoder


class QwenImageEdit(QwenImage):
    """Also of several pictures; edit_processor.py says how many."""

    def __init__(self, parts: Parts, vision: VisionEncoder, pixels: Pixels) -> None:
        super().__init__(parts)
        self._vision = vision
        self._pixels = pixels
        self._colours = image_colours(pixels)

    def plan(self, request: OmniRequest, params: DiffusionParams, inputs: Mapping[str, Any]) -> PicturePlan:
        """`inputs` as edit_processor.py makes them. Where a request does not say otherwise, the picture is as large as the last one
        that it is made of; with a mask it is as large as the first one."""
        whole, seen = _numbered(inputs, "whole"), _numbered(inputs, "seen")
        mask = inputs.get("mask")
        tall, wide, _ = (whole[-1] if mask is None else whole[0]).shape
        ask = checked(params, self.parts.sizes, (tall, wide))
        if mask is not None and (ask.height, ask.width) != (tall, wide):
            asked, accepted = (
                f"{ask.width}x{ask.height}",
                f"{wide}x{tall} or none: a mask keeps the rest of its picture",
            )
            raise InvalidRequestError.of("size", asked, accepted)
        conditions = []
        for name in branches_of(ask):
            ids, positions = inputs[f"{name}_ids"], inputs[f"{name}_positions"]
            data = {"ids": ids, "positions": positions, "seen": seen, "whole": whole if name == "positive" else []}
            conditions.append(Condition(f"{name}:{inputs[f'{name}_key']}", data, len(ids)))
        grids = [self._grid(ask.height, ask.width), *(self._grid(*picture.shape[:2]) for picture in whole)]
        return self._planned(ask, tuple(conditions), {"grids": tuple(grids), "mask": mask})

    def encode(self, conditions: Sequence[Condition]) -> list[Any]:
        """For each {"text": [tokens, d]}; of prompts also {"references": [tokens of all, channels]}. What several conditions of a
        request show is looked at once."""
        looked: dict[int, torch.Tensor] = {}
        inputs = [self._text_input(condition, looked) for condition in conditions]
        hidden = self.parts.text_encoder.encode(inputs)
        return [
            {"text": self._text_rows(rows), **self._references(condition.data["whole"])}
            for condition, rows in zip(conditions, hidden, strict=True)
        ]

    def prepare(self, plan: PicturePlan, branches: tuple[Any, ...], generator: torch.Generator) -> Denoising:
        grids, mask = plan.extras["grids"], plan.extras["mask"]
        references = branches[0]["references"]
        noise = self._noise(grids[0], generator)
        levels = noise_levels(self.parts.schedule, plan.steps, len(noise))
        solver = EulerSolver(levels)
        if mask is not None:
            drawn = torch.from_numpy(mask.astype(np.bool_)).expand(noise.shape[1] // PATCH**2, *mask.shape)
            solver = MaskedSolver(levels, original=references[: len(noise)], first=noise, drawn=packed(drawn))
        return self._begun(noise, solver, branches, {"grids": grids, "references": references})

    def _text_input(self, condition: Condition, looked: dict[int, torch.Tensor]) -> TextInput:
        ids, positions = (torch.tensor(condition.data[name], dtype=torch.int64) for name in ("ids", "positions"))
        for picture in condition.data["seen"]:
            if id(picture) not in looked:
                looked[id(picture)] = self._seen(picture)
        return TextInput(ids, positions, torch.cat([looked[id(picture)] for picture in condition.data["seen"]]))

    def _seen(self, picture: Picture) -> torch.Tensor:
        """The rows of one picture."""
        tall, wide = (side // self._pixels.patch_size for side in picture.shape[:2])
        return self._vision.encode(torch.from_numpy(patchify(picture[None], self._colours, self._pixels)), tall, wide)

    def _references(self, pictures: Sequence[Picture]) -> dict[str, torch.Tensor]:
        """Latents of all, as tokens one behind another, float32."""
        if not pictures:
            return {}
        tokens = []
        for picture in pictures:
            colours = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float() / 255
            tokens.append(packed(self.parts.vae.encode(colours * 2 - 1)[0].float()))
        return {"references": torch.cat(tokens)}


def _numbered(inputs: Mapping[str, Any], name: str) -> list[Picture]:
    """`name_0`, `name_1`, ... as far as they go."""
    found: list[Picture] = []
    while f"{name}_{len(found)}" in inputs:
        found.append(inputs[f"{name}_{len(found)}"])
    return found
