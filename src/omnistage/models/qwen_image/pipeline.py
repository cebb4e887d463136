"""Qwen-Image: one stage that draws what it is asked for.

prompt -> painter (diffusion: text encoder, transformer, autoencoder) -> image
"""

from __future__ import annotations

from omnistage.config.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig

PAINTER = 0

_HERE = "omnistage.models.qwen_image"
_PICTURE_NBYTES = 3 * 2048 * 2048  # of three bytes a pixel

PIPELINE = PipelineConfig(
    model_type="qwen_image",
    model_arch="QwenImagePipeline",
    diffusers_class_name="QwenImagePipeline",
    stages=(
        StagePipelineConfig(
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
        ),
    ),
    default_deploy_config_name="qwen_image.yaml",
)
