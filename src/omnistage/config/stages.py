"""Edges and typed stages of a resolution: the author's stage, the operator's values, the folder of the model.

What a pipeline fixes (`sampling_constraints`) is laid over the operator's default parameters.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from omnistage.config.hooks import package_folder
from omnistage.config.keys import CONNECTOR_KEYS, STAGE_KEYS, STRUCT_OF, Key
from omnistage.config.layers import Given
from omnistage.config.pipeline import ChunkPolicy, Edge, ExecutionType, StagePipelineConfig
from omnistage.config.resolution import DeployConfig
from omnistage.config.stage import CLIENT, ARStageConfig, OutputEdge, StageConfig
from omnistage.config.state import ResolutionState
from omnistage.config.values import Table
from omnistage.core.errors import ConfigError, InvalidRequestError
from omnistage.core.params import SamplingParams, StageParams, overlay, params_from

INLINE_PROCESS = "inline"
_FOREIGN_PARAMS = frozenset({"detokenize", "output_kind", "spaces_between_special_tokens"})
"""Parameters in other engines' deploy files that change nothing here."""


def resolve_edges(state: ResolutionState, async_chunk: bool) -> tuple[Edge, ...]:
    """Every edge with the operator's window and chunks; without `async_chunk` none is streaming.

    `item_nbytes` grows with the largest chunk, in proportion to the author's schedule.
    """
    return tuple(_edge(state, edge, async_chunk) for edge in state.pipeline.edges)


def _edge(state: ResolutionState, edge: Edge, async_chunk: bool) -> Edge:
    path = f"edges.{edge.source}->{edge.target}"
    chunk = ChunkPolicy(
        unit=edge.chunk.unit,
        first=_edge_value(state, f"{path}.chunk.first", edge.chunk.first),
        later=_edge_value(state, f"{path}.chunk.later", edge.chunk.later),
        adaptive=_edge_value(state, f"{path}.chunk.adaptive", edge.chunk.adaptive),
    )
    if not edge.streaming and chunk != edge.chunk:
        state.problems.add(ConfigError(f"{path}.chunk: this edge hands over whole items", field=path))
    before, after = max(edge.chunk.first, edge.chunk.later), max(chunk.first, chunk.later)
    return dataclasses.replace(
        edge,
        window=_edge_value(state, f"{path}.window", edge.window),
        chunk=chunk,
        streaming=edge.streaming and async_chunk,
        item_nbytes=-(-edge.item_nbytes * after // before),
    )


def _edge_value(state: ResolutionState, path: str, written: Any) -> Any:
    given = state.layers.first(path) or Given(written, "pipeline", path)
    state.provenance[path] = given.source
    return given.value


def resolve_stage(
    state: ResolutionState,
    stage: StagePipelineConfig,
    model_path: Path | None,
    edges: tuple[Edge, ...],
    deploy: DeployConfig,
) -> StageConfig:
    """The typed, complete configuration of one stage."""
    own = [key for key in STAGE_KEYS if stage.execution_type in key.kinds and key.name not in CONNECTOR_KEYS]
    values = {key.name: _stage_value(state, key, stage) for key in own}
    if values["process"] is None:
        values["process"] = stage.model_stage
    if deploy.inline:
        values["process"] = INLINE_PROCESS
        state.provenance[f"stages.{stage.stage_id}.process"] = "inline"
    kind = STRUCT_OF[stage.execution_type]
    given = {name: value for name, value in values.items() if name in kind.__struct_fields__}
    given["default_sampling_params"] = _params(state, stage, values["default_sampling_params"])
    prepares = stage.processor is not None and not stage.input_sources
    given["processor_workers"] = deploy.processor_workers if prepares else 0
    config: StageConfig = kind(**_from_pipeline(state, stage, model_path, edges), **given)
    if isinstance(config, ARStageConfig):
        _check_budget(state, config)
    return config


def _stage_value(state: ResolutionState, key: Key, stage: StagePipelineConfig) -> Any:
    path = f"stages.{stage.stage_id}.{key.name}"
    if isinstance(key.type, Table) and not key.only:
        return state.table(key, path)
    return state.value(key, path, *([key.name] if key.may_stand_pipeline_wide else []))


def _from_pipeline(
    state: ResolutionState, stage: StagePipelineConfig, model_path: Path | None, edges: tuple[Edge, ...]
) -> dict[str, Any]:
    """What the author and the model's folder say of a stage."""
    incoming = [edge for edge in edges if edge.target == stage.stage_id]
    outputs = [_output(edge) for edge in edges if edge.source == stage.stage_id]
    if stage.final_output:
        outputs.append(OutputEdge(target=CLIENT, item_nbytes=stage.item_nbytes))
    root = model_path if stage.package is None else package_folder(stage.package)
    folder = _folder(state, stage, "model_subdir", root, stage.model_subdir)
    tokenizer = folder if stage.owns_tokenizer else ""
    if stage.tokenizer_subdir is not None:
        tokenizer = _folder(state, stage, "tokenizer_subdir", root, stage.tokenizer_subdir)
    window = {"input_window": max(edge.window for edge in incoming)} if incoming else {}
    return {
        "stage_id": stage.stage_id,
        "model_stage": stage.model_stage,
        "model_path": folder,
        "loader": stage.loader,
        "processor": stage.processor,
        "bridge": stage.bridge,
        "input_sources": stage.input_sources,
        "outputs": tuple(outputs),
        "final_output_type": stage.final_output_type,
        "tokenizer_path": tokenizer or None,
        "extras": dict(stage.extras),
        **window,
    }


def _output(edge: Edge) -> OutputEdge:
    chunk = edge.chunk
    return OutputEdge(
        target=edge.target,
        select=edge.select,
        streaming=edge.streaming,
        unit=chunk.unit,
        first=chunk.first,
        later=chunk.later,
        adaptive=chunk.adaptive,
        item_nbytes=edge.item_nbytes,
    )


def _folder(
    state: ResolutionState, stage: StagePipelineConfig, what: str, root: Path | None, subdir: str | None
) -> str:
    """The folder of a stage's files, "" for a pipeline without files."""
    if root is None:
        return ""
    folder = root / (subdir or "")
    if not folder.is_dir():
        state.problems.add(ConfigError(f"stages.{stage.stage_id}: {what}: there is no folder {folder}", field=what))
    return str(folder)


def _params(state: ResolutionState, stage: StagePipelineConfig, values: dict[str, Any]) -> StageParams:
    """Default parameters, with what the pipeline fixes on top; the kind's own defaults stand in for refused ones."""
    kind = stage.execution_type.params
    path = f"stages.{stage.stage_id}.default_sampling_params"
    kept = {name: value for name, value in values.items() if not _without_meaning(state, stage, f"{path}.{name}", name)}
    fixed = dict(stage.sampling_constraints)
    for name in sorted(fixed.keys() & kept.keys()):
        if kept[name] != fixed[name]:
            state.notes.append(f"{path}.{name}: the pipeline fixes {fixed[name]!r}; {kept[name]!r} is not used")
    state.provenance.update({f"{path}.{name}": "pipeline (fixed)" for name in fixed})
    try:
        return overlay(params_from(kind, kept, where=f"{path}."), fixed, where=f"{path}.")
    except InvalidRequestError as error:
        state.problems.add(ConfigError(error.message, field=error.field))
        return kind()


def _without_meaning(state: ResolutionState, stage: StagePipelineConfig, path: str, name: str) -> bool:
    """True for a parameter that other engines' files give to stages which have no use for it; it goes to the warning."""
    foreign = name in _FOREIGN_PARAMS
    if stage.execution_type is ExecutionType.LLM_GENERATION:
        kind = stage.execution_type.params
        foreign = foreign or (name in SamplingParams.__struct_fields__ and name not in kind.__struct_fields__)
    if foreign:
        state.ignored.append(path)
        del state.provenance[path]
    return foreign


def _check_budget(state: ResolutionState, config: ARStageConfig) -> None:
    """A step must have room for one token of every running request, and for a whole prompt where prompts are not cut."""
    path = f"stages.{config.stage_id}.max_num_batched_tokens"
    needs = [(config.max_num_seqs, f"max_num_seqs ({config.max_num_seqs})")]
    if not config.enable_chunked_prefill:
        needs.append(
            (config.max_model_len, f"max_model_len ({config.max_model_len}) as enable_chunked_prefill is false")
        )
    for least, reason in needs:
        if config.max_num_batched_tokens < least:
            state.problems.add(ConfigError.of(path, config.max_num_batched_tokens, f"at least {reason}"))
