"""Pipelines that draw: a painter alone, and one that is told what to draw."""

from __future__ import annotations

from omnistage.config.pipeline import Edge, ExecutionType, PipelineConfig, StagePipelineConfig

MODULE = "tests.drawing.painter"

PIPELINE = PipelineConfig(
    model_type="drawing",
    model_arch="no weights",
    stages=(
        StagePipelineConfig(
            stage_id=0,
            model_stage="painter",
            execution_type=ExecutionType.DIFFUSION,
            loader=f"{MODULE}:load_painter",
            processor=f"{MODULE}:load_words",
            final_output=True,
            final_output_type="image",
            item_nbytes=256 * 256 * 3,
        ),
    ),
)

TOLD = PipelineConfig(
    model_type="told",
    model_arch="no weights",
    stages=(
        StagePipelineConfig(
            stage_id=0,
            model_stage="writer",
            execution_type=ExecutionType.LLM_GENERATION,
            loader="tests.fakes:load_choices",
            processor="tests.fakes:load_words",
            final_output=True,
            final_output_type="text",
        ),
        StagePipelineConfig(
            stage_id=1,
            model_stage="painter",
            execution_type=ExecutionType.DIFFUSION,
            loader=f"{MODULE}:load_painter",
            bridge=f"{MODULE}:words_bridge",
            edges=(Edge(0, 1),),
            final_output=True,
            final_output_type="image",
        ),
    ),
)
