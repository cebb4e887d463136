"""`omnistage models`: which models there are, what each reads and makes, and whether its weights are here."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from omnistage.config.detect import locate, read_pipeline
from omnistage.config.pipeline import PipelineConfig, StagePipelineConfig
from omnistage.core.errors import OmniError
from omnistage.models.registry import REGISTRY


def run() -> None:
    """List the models that can be served."""
    table = [("NAME", "STAGES", "READS", "MAKES", "VOICES", "WEIGHTS"), *rows()]
    widths = [max(len(row[column]) for row in table) for column in range(5)]
    for row in table:
        typer.echo("  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[5]]))


def rows() -> Iterator[tuple[str, str, str, str, str, str]]:
    """One row per model of the registry."""
    for name in REGISTRY:
        pipeline = read_pipeline(REGISTRY, name, "registry")
        stages = "".join(
            f"{_joint(place, stage)}{stage.model_stage} ({stage.execution_type.value})"
            for place, stage in enumerate(pipeline.stages)
        )
        makes = ", ".join(str(stage.final_output_type) for stage in pipeline.stages if stage.final_output)
        yield (
            name,
            stages,
            ", ".join(pipeline.reads),
            makes,
            ", ".join(pipeline.voices) or "-",
            _weights(pipeline, name),
        )


def _joint(place: int, stage: StagePipelineConfig) -> str:
    """What stands before a stage: an arrow where others feed it, a comma where it begins anew."""
    if place == 0:
        return ""
    return " -> " if stage.edges else ", "


def _weights(pipeline: PipelineConfig, name: str) -> str:
    if pipeline.locate is None:
        return "a folder of yours"
    try:
        return str(locate(pipeline, name, builtin=True))
    except OmniError:
        return f"not here yet: omnistage fetch {name}" if pipeline.fetch else "not here"
