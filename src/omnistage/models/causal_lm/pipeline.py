"""Any causal language model in Hugging Face layout as a pipeline of one stage: text in, text out."""

from __future__ import annotations

from omnistage.config.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig

PIPELINE = PipelineConfig(
    model_type="causal_lm",
    model_arch="CausalLM",
    hf_architectures=("*ForCausalLM",),
    stages=(
        StagePipelineConfig(
            stage_id=0,
            model_stage="llm",
            execution_type=ExecutionType.LLM_AR,
            loader="omnistage.models.causal_lm.loader:load",
            processor="omnistage.models.causal_lm.processor:load_processor",
            final_output=True,
            final_output_type="text",
            owns_tokenizer=True,
        ),
    ),
)
