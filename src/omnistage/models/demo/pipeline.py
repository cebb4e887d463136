"""The built-in model: a thinker that writes, a speaker that says it while it is being written, and a painter.

prompt -> thinker (SmolLM2-135M-Instruct, AR) -> text
       |         └─ text deltas -> speaker (Kokoro-82M, generation) -> audio, 24 kHz
       └> painter (a small Qwen-Image, diffusion) -> image, 64x64

The painter reads what the user wrote, not what the thinker makes of it: so a picture begins at once, and nothing waits for it.
"""

from __future__ import annotations

from omnistage.config.pipeline import ChunkPolicy, Edge, ExecutionType, PipelineConfig, StagePipelineConfig

THINKER, SPEAKER, PAINTER = 0, 1, 2
_LONGEST_CUT_NBYTES = 20 * 24_000 * 4  # 150 phonemes take under 20 s at the natural pace, float32
_SIDE = 64  # pixels: the one size that the painter was trained for

PIPELINE = PipelineConfig(
    model_type="demo",
    model_arch="SmolLM2-135M-Instruct, Kokoro-82M and a small Qwen-Image",
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
        StagePipelineConfig(
            stage_id=PAINTER,
            model_stage="painter",
            execution_type=ExecutionType.DIFFUSION,
            loader="omnistage.models.qwen_image.loader:load",
            processor="omnistage.models.qwen_image.processor:load_processor",
            final_output=True,
            final_output_type="image",
            package="omnistage.models.demo",
            model_subdir="painter",
            extras={"sides": [_SIDE], "known_words": "known_words.json"},
            item_nbytes=3 * _SIDE * _SIDE,
        ),
    ),
    default_deploy_config_name="demo.yaml",
    default_modalities=("text", "audio"),
    voices=("af_heart", "am_michael"),
    locate="omnistage.models.demo.weights:locate",
    fetch="omnistage.models.demo.fetch:fetch_demo",
)
