"""Loads the diffusion stage of a Qwen-Image folder. Its parts stand in folders of their own, named as in model_index.json."""

from __future__ import annotations

from pathlib import Path

import torch

from omnistage.config.stage import DiffusionStageConfig
from omnistage.modeling.progress import reading_together
from omnistage.modeling.tensors import dtype_of
from omnistage.models.qwen_image.edit_model import QwenImageEdit
from omnistage.models.qwen_image.edit_prompts import EDIT
from omnistage.models.qwen_image.model import Parts, QwenImage
from omnistage.models.qwen_image.prompts import DRAWING, Template
from omnistage.models.qwen_image.settings import (
    check_fit,
    picture_pixels,
    picture_sizes,
    picture_token,
    schedule_shape,
    text_shape,
    transformer_shape,
    vae_shape,
    vision_shape,
)
from omnistage.models.qwen_image.text_encoder import TextEncoder
from omnistage.models.qwen_image.transformer import Transformer
from omnistage.models.qwen_image.vision import VisionEncoder
from omnistage.models.qwen_image.weights import (
    read_text_encoder,
    read_transformer,
    read_vae,
    read_vision,
    weights_nbytes,
)


def load(config: DiffusionStageConfig) -> QwenImage:
    """Raises BrokenCheckpointError."""
    with reading_together(weights_nbytes(Path(config.model_path))):
        return QwenImage(load_parts(config, DRAWING, reads_pictures=False))


@torch.inference_mode()
def load_parts(config: DiffusionStageConfig, template: Template, *, reads_pictures: bool) -> Parts:
    folder, dtype = Path(config.model_path), dtype_of(config.dtype)
    transformer, vae, text = transformer_shape(folder), vae_shape(folder), text_shape(folder)
    check_fit(transformer, vae, text, folder)
    return Parts(
        text_encoder=TextEncoder(text, read_text_encoder(folder, text, dtype), picture_token(folder)),
        transformer=Transformer(transformer, read_transformer(folder, transformer, dtype)),
        vae=read_vae(folder, vae, dtype, reads_pictures=reads_pictures),
        schedule=schedule_shape(folder),
        sizes=picture_sizes(vae, config.extras),
        dropped=template.dropped,
    )


@torch.inference_mode()
def load_edit(config: DiffusionStageConfig) -> QwenImageEdit:
    """Of QwenImageEditPipeline and of QwenImageEditPlusPipeline, which differ in what their processors make of pictures. Raises
    BrokenCheckpointError."""
    folder = Path(config.model_path)
    shape = vision_shape(folder)
    with reading_together(weights_nbytes(folder)):
        vision = VisionEncoder(shape, read_vision(folder, shape, dtype_of(config.dtype)))
        parts = load_parts(config, EDIT.template, reads_pictures=True)
    return QwenImageEdit(parts, vision, picture_pixels(folder, shape))
