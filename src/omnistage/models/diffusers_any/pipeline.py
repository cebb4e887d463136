"""Any folder of diffusers that draws pictures out of a text, and that no other family knows: one stage, which calls its pipeline.

prompt -> painter (diffusion: the library's pipeline as a whole) -> image
"""

from __future__ import annotations

from omnistage.config.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig

PIPELINE = PipelineConfig(
    model_type="diffusers_any",
    model_arch="DiffusionPipeline",
    diffusers_class_name="*Pipeline",
    stages=(
        StagePipelineConfig(
            stage_id=0,
            model_stage="painter",
            execution_type=ExecutionType.DIFFUSION,
            loader="omnistage.models.diffusers_any.loader:load",
            final_output=True,
            final_output_type="image",
            item_nbytes=3 * 2048 * 2048,  # of three bytes a pixel
        ),
    ),
    default_deploy_config_name="diffusers_any.yaml",
)
