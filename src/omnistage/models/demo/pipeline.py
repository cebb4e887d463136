"""The built-in model: a thinker that writes and a speaker that says it while it is being written.

prompt -> thinker (SmolLM2-135M-Instruct, AR) -> text
                 └─ text deltas -> speaker (Kokoro-82M, generation) -> audio, 24 kHz
"""

from __future__ import annotations

from omnistage.config.pipeline import ChunkPolicy, Edge, ExecutionType, PipelineConfig, StagePipelineConfig

THINKER, SPEAKER = 0, 1
_LONGEST_CUT_NBYTES = 20 * 24_000 * 4  # 150 phonemes take under 20 s at the natural pace, float32

PIPELINE = PipelineConfig(
    model_type="demo",
    model_arch="SmolLM2-135M-Instruct and Kokoro-82M",
    stages=(
        StagePipelineConfig(
            stage_id=THINKER,
            model_stage="thinker",
            execution_type=ExecutionType.LLM_AR,
            loader="omnistage.models.demo.thinker:load",
            processor="omnistage.models.demo.processor:load_processor",
            final_output=True,
            final_output_type="text",
            owns_tokenizer=True,
            model_subdir="thinker",
            tokenizer_subdir="thinker",
        ),
        StagePipelineConfig(
            stage_id=SPEAKER,
            model_stage="speaker",
            execution_type=ExecutionType.LLM_GENERATION,
            loader="omnistage.models.demo.speaker:load",
            bridge="omnistage.models.demo.speaker:bridge",
            edges=(
                # Text is small and a bridge makes few cuts of much of it: the window only bounds how far the thinker
                # may be ahead, and a slow voice should not slow the text.
                Edge(
                    THINKER,
                    SPEAKER,
                    select="omnistage.models.demo.speaker:spoken_text",
                    window=64,
                    chunk=ChunkPolicy("items", first=1, later=4),
                ),
            ),
            final_output=True,
            final_output_type="audio",
            model_subdir="speaker",
            item_nbytes=_LONGEST_CUT_NBYTES,
        ),
    ),
    default_deploy_config_name="demo.yaml",
    voices=("af_heart", "am_michael"),
    locate="omnistage.models.demo.weights:locate",
    fetch="omnistage.models.demo.fetch:fetch_demo",
)
