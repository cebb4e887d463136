"""Qwen-Image: one stage that draws what it is asked for, or changes pictures that it is given.

prompt, pictures -> painter (diffusion: text encoder, transformer, autoencoder) -> image
"""

from __future__ import annotations

from dataclasses import replace

from omnistage.config.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig

PAINTER = 0

_HERE = "omnistage.models.qwen_image"
_PICTURE_NBYTES = 3 * 2048 * 2048  # of three bytes a pixel

_PAINTER = StagePipelineConfig(
    stage_id=PAINTER,
    model_stage="painter",
    execution_type=ExecutionType.DIFFUSION,
    loader=f"{_HERE}.loader:load",
    processor=f"{_HERE}.processor:load_processor",
    final_output=True,
    final_output_type="image",
    owns_tokenizer=True,
    tokenizer_subdir="tokenizer",
    item_nbytes=_PICTURE_NBYTES,
)

PIPELINE = PipelineConfig(
    model_type="qwen_image",
    model_arch="QwenImagePipeline",
    diffusers_class_name="QwenImagePipeline",
    stages=(_PAINTER,),
    default_deploy_config_name="qwen_image.yaml",
)

EDIT_PIPELINE = replace(
    PIPELINE,
    model_type="qwen_image_edit",
    model_arch="QwenImageEditPipeline",
    diffusers_class_name="QwenImageEditPipeline",
    reads=("text", "image", "mask"),
    stages=(
        replace(_PAINTER, loader=f"{_HERE}.loader:load_edit", processor=f"{_HERE}.edit_processor:load_edit_processor"),
    ),
)

EDIT_PLUS_PIPELINE = replace(
    EDIT_PIPELINE,
    model_type="qwen_image_edit_plus",
    model_arch="QwenImageEditPlusPipeline",
    diffusers_class_name="QwenImageEditPlusPipeline",
    stages=(
        replace(
            _PAINTER, loader=f"{_HERE}.loader:load_edit", processor=f"{_HERE}.edit_processor:load_edit_plus_processor"
        ),
    ),
)
