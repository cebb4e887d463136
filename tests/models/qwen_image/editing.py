"""Diffusers' edit pipelines, at areas of a few thousand pixels, and without torchvision.

Their processor, which wants it for videos, is put together of its parts. One thing is given to them that they forget: which tokens
are pictures' (`mm_token_type_ids`). Transformers before version 5 found that out itself; without it rows of pictures stand one
behind another like a text, and the models were not trained so (reported to diffusers as 14194).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image

from omnistage.models.qwen_image import references
from omnistage.models.qwen_image.edit_prompts import EDIT_PLUS, Editing
from tests.models.easel import Drawn
from tests.models.qwen_image.drawing import Asked, by_diffusers

AREA = 96 * 96
SEEN_AREA = 64 * 64
SMALL_PLUS = Editing(EDIT_PLUS.template, EDIT_PLUS.most, SEEN_AREA)


class TextAndPictures:
    """What `Qwen2_5_VLProcessor` does with texts and pictures."""

    def __init__(self, tokenizer: Any, pictures: Any) -> None:
        self._tokenizer = tokenizer
        self._pictures = pictures

    def __call__(self, *, text: Sequence[str], images: Any, **_: Any) -> Any:
        from transformers import BatchFeature

        (words,) = text
        seen = self._pictures(images=images, return_tensors="pt")
        counts = (seen["image_grid_thw"].prod(-1) // self._pictures.merge_size**2).tolist()
        for count in counts:
            words = words.replace("<|image_pad|>", "<|held|>" * count, 1)
        ids = self._tokenizer(words.replace("<|held|>", "<|image_pad|>"), return_tensors="pt")
        return BatchFeature({**ids, **seen})


def edit_pipeline(folder: Path, name: str) -> Any:
    import diffusers
    from transformers import Qwen2VLImageProcessorPil

    plain = diffusers.QwenImagePipeline.from_pretrained(folder)
    parts = dict(plain.components)
    parts["processor"] = TextAndPictures(
        parts["tokenizer"], Qwen2VLImageProcessorPil.from_pretrained(folder / "processor")
    )
    encoder = parts["text_encoder"]
    forward = encoder.forward

    def told(*, input_ids: torch.Tensor, **more: Any) -> Any:
        kinds = (input_ids == encoder.config.image_token_id).int()
        return forward(input_ids=input_ids, mm_token_type_ids=kinds, **more)

    encoder.forward = told
    made = getattr(diffusers, name)(**parts)
    made.set_progress_bar_config(disable=True)
    return made


@contextmanager
def small_areas() -> Iterator[None]:
    """Pictures are read at areas of a few thousand pixels, here and in diffusers."""
    from diffusers.pipelines.qwenimage import (
        pipeline_qwenimage_edit,
        pipeline_qwenimage_edit_inpaint,
        pipeline_qwenimage_edit_plus,
    )

    def shrunk(calculate: Any) -> Any:
        small = {1024 * 1024: AREA, EDIT_PLUS.seen_area: SEEN_AREA}
        return lambda area, ratio: calculate(small[area], ratio)

    with ExitStack() as stack:
        stack.enter_context(patch.object(references, "REFERENCE_AREA", AREA))
        for module in (pipeline_qwenimage_edit, pipeline_qwenimage_edit_inpaint, pipeline_qwenimage_edit_plus):
            changed = shrunk(module.calculate_dimensions)
            stack.enter_context(patch.object(module, "calculate_dimensions", changed))
        yield


def edited_by_diffusers(pipeline: Any, asked: Asked, **more: Any) -> Drawn:
    pictures = [Image.fromarray(picture) for picture in asked.pictures]
    return by_diffusers(pipeline, asked, image=pictures if len(pictures) > 1 else pictures[0], **more)


def photograph(height: int, width: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Something with edges and colours, [height, width, 3] uint8."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))
