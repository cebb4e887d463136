"""Small pipelines for the tests of config: one with a stage of every kind, and what its hooks name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omnistage.config.pipeline import ChunkPolicy, Edge, ExecutionType, PipelineConfig, StagePipelineConfig

HERE = "tests.config.samples"


def load(config: Any) -> None:
    """The loader that every sample stage names."""


def bridge(*arguments: Any) -> None:
    """The bridge that every fed sample stage names."""


def locate(model: str) -> Path:
    """Where the built-in sample lies: in the folder of these tests."""
    return Path(__file__).parent


def voices(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The voices that a checkpoint says it has."""
    return tuple(config.get("voices", ()))


def is_large(config: Mapping[str, Any]) -> bool:
    return bool(config.get("size") == "large")


def writer(stage_id: int = 0, **more: Any) -> StagePipelineConfig:
    """An AR entry stage with text as its final output."""
    fields: dict[str, Any] = {
        "final_output": True,
        "final_output_type": "text",
        "loader": f"{HERE}:load",
        "processor": f"{HERE}:load",
    }
    fields.update(more)
    return StagePipelineConfig(stage_id, fields.pop("model_stage", "writer"), ExecutionType.LLM_AR, **fields)


def speaker(stage_id: int = 1, source: int = 0, **more: Any) -> StagePipelineConfig:
    """A generation stage that is fed by `source` and gives audio."""
    edge = Edge(source, stage_id, window=3, chunk=ChunkPolicy("frames", first=4, later=25), item_nbytes=1000)
    fields: dict[str, Any] = {
        "edges": (edge,),
        "bridge": f"{HERE}:bridge",
        "final_output": True,
        "final_output_type": "audio",
        "loader": f"{HERE}:load",
        "item_nbytes": 500,
        **more,
    }
    return StagePipelineConfig(stage_id, fields.pop("model_stage", "speaker"), ExecutionType.LLM_GENERATION, **fields)


def painter(stage_id: int = 2, source: int = 0, **more: Any) -> StagePipelineConfig:
    """A diffusion stage that takes whole items of `source` and gives pictures."""
    fields: dict[str, Any] = {
        "edges": (Edge(source, stage_id, streaming=False),),
        "bridge": f"{HERE}:bridge",
        "final_output": True,
        "final_output_type": "image",
        "loader": f"{HERE}:load",
        **more,
    }
    return StagePipelineConfig(stage_id, fields.pop("model_stage", "painter"), ExecutionType.DIFFUSION, **fields)


PIPELINE = PipelineConfig(
    model_type="sample",
    model_arch="Sample",
    stages=(
        writer(sampling_constraints={"stop_token_ids": [7]}),
        speaker(extras={"rate": 24000}),
        painter(),
    ),
    stage_cli_aliases={"voice": 1},
    voices=("anna", "otto"),
)

BUILT_IN = PipelineConfig("built_in", "BuiltIn", (writer(owns_tokenizer=True),), locate=f"{HERE}:locate")
ANY_TEXT = PipelineConfig("any_text", "AnyText", (writer(owns_tokenizer=True),), hf_architectures=("*ForText",))
NAMED_TEXT = PipelineConfig("named_text", "NamedText", (writer(),), hf_architectures=("OneForText",))
LARGE = PipelineConfig("large", "Large", (writer(),), hf_config_predicate=f"{HERE}:is_large")
PICTURES = PipelineConfig("pictures", "Pictures", (painter(0, edges=()),), diffusers_class_name="PicturePipeline")
ANY_PICTURES = PipelineConfig("any_pictures", "Any", (painter(0, edges=()),), diffusers_class_name="*Pipeline")
VOICE_ONLY = PipelineConfig("voice_only", "VoiceOnly", (speaker(0, edges=(), bridge=None),))
AUTHOR_ONLY = PipelineConfig(
    "with_deploy", "WithDeploy", PIPELINE.stages, default_deploy_config_name="sample.yaml", voices=("anna",)
)
NOT_A_PIPELINE = 3
WRONG_LOCATE = PipelineConfig("wrong_locate", "WrongLocate", (writer(),), locate=f"{HERE}:NOT_A_PIPELINE")

SPEAKING = PipelineConfig(
    "speaking",
    "Speaking",
    (writer(), speaker()),
    hf_architectures=("ASpeaker",),
    voices=("middle",),
    hf_voices=f"{HERE}:voices",
)
REGISTRY = {
    "sample": f"{HERE}:PIPELINE",
    "built_in": f"{HERE}:BUILT_IN",
    "any_text": f"{HERE}:ANY_TEXT",
    "any_pictures": f"{HERE}:ANY_PICTURES",
    "named_text": f"{HERE}:NAMED_TEXT",
    "large": f"{HERE}:LARGE",
    "pictures": f"{HERE}:PICTURES",
    "speaking": f"{HERE}:SPEAKING",
}
