"""Qwen3-Omni: a thinker that hears, sees and writes, a talker that says it in codec frames, a decoder that makes sound of them.

prompt, media -> thinker (AR) -> text
                   └─ token ids, rows of media -> talker (AR) -> frames
                                                     └─ 4, then 25 at a time -> code2wav (generation) -> audio, 24 kHz
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omnistage.config.pipeline import ChunkPolicy, Edge, ExecutionType, PipelineConfig, StagePipelineConfig

THINKER, TALKER, CODE2WAV = 0, 1, 2

_HERE = "omnistage.models.qwen3_omni"
_ARCHITECTURES = ("Qwen3OmniMoeForConditionalGeneration",)
_READS = ("text", "image", "audio", "video")
_MEDIA_ROWS_NBYTES = 2 * 2**20  # 512 rows of 2048 numbers of two bytes: what one step of the thinker can hand over
_CHUNK_NBYTES = 100 * 1920 * 4  # four chunks that have waited for each other, 1920 samples a frame, float32


def has_talker(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint speaks."""
    return bool(config.get("enable_audio_output", True))


def has_no_talker(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint only writes."""
    return not has_talker(config)


def voices(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The speakers of a checkpoint."""
    match config:
        case {"talker_config": {"speaker_id": {**names}}}:
            return tuple(sorted(map(str, names)))
    return ()


_THINKER = StagePipelineConfig(
    stage_id=THINKER,
    model_stage="thinker",
    execution_type=ExecutionType.LLM_AR,
    loader=f"{_HERE}.thinker:load",
    processor=f"{_HERE}.processor:load_processor",
    final_output=True,
    final_output_type="text",
    owns_tokenizer=True,
)

PIPELINE = PipelineConfig(
    model_type="qwen3_omni_moe",
    model_arch=_ARCHITECTURES[0],
    hf_architectures=_ARCHITECTURES,
    hf_config_predicate=f"{_HERE}.pipeline:has_talker",
    hf_voices=f"{_HERE}.pipeline:voices",
    voices=("aiden", "chelsie", "ethan"),
    reads=_READS,
    stages=(
        _THINKER,
        StagePipelineConfig(
            stage_id=TALKER,
            model_stage="talker",
            execution_type=ExecutionType.LLM_AR,
            loader=f"{_HERE}.talker_loader:load",
            bridge=f"{_HERE}.bridges:talker_bridge",
            edges=(
                Edge(
                    THINKER,
                    TALKER,
                    select=f"{_HERE}.bridges:for_talker",
                    window=8,
                    chunk=ChunkPolicy("items", first=1, later=8),
                    item_nbytes=_MEDIA_ROWS_NBYTES,
                ),
            ),
        ),
        StagePipelineConfig(
            stage_id=CODE2WAV,
            model_stage="code2wav",
            execution_type=ExecutionType.LLM_GENERATION,
            loader=f"{_HERE}.code2wav:load",
            bridge=f"{_HERE}.bridges:code2wav_bridge",
            edges=(
                Edge(
                    TALKER,
                    CODE2WAV,
                    select=f"{_HERE}.bridges:for_code2wav",
                    chunk=ChunkPolicy("frames", first=1, later=25),
                ),
            ),
            final_output=True,
            final_output_type="audio",
            item_nbytes=_CHUNK_NBYTES,
        ),
    ),
    default_deploy_config_name="qwen3_omni_moe.yaml",
)

THINKER_PIPELINE = replace(
    PIPELINE,
    model_type="qwen3_omni_moe_thinker",
    hf_config_predicate=f"{_HERE}.pipeline:has_no_talker",
    hf_voices=None,
    voices=(),
    stages=(_THINKER,),
    default_deploy_config_name="qwen3_omni_moe_thinker.yaml",
)
