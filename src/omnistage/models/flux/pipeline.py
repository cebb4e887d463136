"""FLUX.1: one stage that draws what it is asked for.

prompt -> painter (diffusion: two text encoders, transformer, autoencoder) -> image
"""

from __future__ import annotations

from omnistage.config.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig

PAINTER = 0

_HERE = "omnistage.models.flux"

PIPELINE = PipelineConfig(
    model_type="flux",
    model_arch="FluxPipeline",
    diffusers_class_name="FluxPipeline",
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
            tokenizer_subdir="tokenizer_2",
            item_nbytes=3 * 2048 * 2048,  # a picture, of three bytes a pixel
        ),
    ),
    default_deploy_config_name="flux.yaml",
)
