"""What the author of a model writes: the stages of a pipeline, how they are joined, which hooks they use.

Frozen topology. Hooks are dotted names ("package.module:attribute") and are resolved in the worker that needs them;
this module imports no model, no torch, and starts nothing. All errors of a graph come in one `ConfigError`, raised when
the pipeline is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from omnistage.config.hooks import hook_fault, package_folder
from omnistage.core.errors import ConfigError, InvalidRequestError
from omnistage.core.params import DiffusionParams, GenerationParams, SamplingParams, StageParams, params_from
from omnistage.core.request import MODALITIES, READABLE


class ExecutionType(StrEnum):
    """The loop a stage runs in."""

    LLM_AR = "llm_ar"
    LLM_GENERATION = "llm_generation"
    DIFFUSION = "diffusion"

    @property
    def params(self) -> type[StageParams]:
        """The parameters that a caller gives such a stage."""
        match self:
            case ExecutionType.LLM_AR:
                return SamplingParams
            case ExecutionType.LLM_GENERATION:
                return GenerationParams
            case ExecutionType.DIFFUSION:
                return DiffusionParams


@dataclass(frozen=True, slots=True)
class ChunkPolicy:
    """When a sender sends what it has gathered for a streaming edge.

    `unit`: "frames" or "rows" count the first axis of the payload's tensors, "items" counts captures. It sends at
    >= `first` while nothing of the request is in flight, else at `later`; `adaptive` False pins the schedule (`first`,
    then `later`). An edge that does not stream sends at the end: items as one payload, frames and rows by the pinned
    schedule.
    """

    unit: Literal["frames", "rows", "items"] = "items"
    first: int = 1
    later: int = 1
    adaptive: bool = True


@dataclass(frozen=True, slots=True)
class Edge:
    """From `source` to `target` (stage ids).

    `select` names `select(capture, request) -> MultimodalPayload | None`, run in the sender; None sends everything
    captured. `window`: items that may be unacknowledged. `item_nbytes` estimates one item at the chunk schedule written
    here; 0 means that its items fit into the messages and need no arena.
    """

    source: int
    target: int
    select: str | None = None
    streaming: bool = True
    window: int = 4
    chunk: ChunkPolicy = ChunkPolicy()
    item_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class StagePipelineConfig:
    """One stage.

    `loader` names `load(config: StageConfig) -> model` for the stage's runner (protocols in modeling.protocols).
    `processor` (entry stages) names `load(config) -> Processor`, `bridge` (others) names
    `bridge(state, source, seq, payload, last) -> (state, list[StageInput])`. `sampling_constraints` always win over
    callers. `edges` are the stage's incoming edges. `item_nbytes` estimates one item of a final output, as
    `Edge.item_nbytes` does. `package` names an installed package in whose folder the stage's files lie, for those that come with
    one; else they lie in the model's folder. `model_subdir` and `tokenizer_subdir` are below either.
    """

    stage_id: int
    model_stage: str
    execution_type: ExecutionType
    loader: str
    edges: tuple[Edge, ...] = ()
    processor: str | None = None
    bridge: str | None = None
    final_output: bool = False
    final_output_type: str | None = None
    owns_tokenizer: bool = False
    sampling_constraints: Mapping[str, Any] = field(default_factory=dict)
    package: str | None = None
    model_subdir: str | None = None
    tokenizer_subdir: str | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    item_nbytes: int = 0

    @property
    def input_sources(self) -> tuple[int, ...]:
        return tuple(edge.source for edge in self.edges)


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """A pipeline: a directed acyclic graph of stages, with at least one entry (no edges) and one final output.

    `locate` names `locate(model: str) -> Path` for models that are no folder (built-in ones); `fetch` names
    `fetch(progress) -> Path`, where `progress(message, done, total)` is called for every part. `voices` tells the server what
    the model can do, `reads` which kinds of input it takes (of core.request.READABLE): a model that reads text only gets contents
    of messages as one string each, and no media. `default_modalities` are made for whoever names none (without any: all that the
    pipeline makes). `endpoint_restrictions` lists the endpoints that can serve it
    ("/v1/chat/completions"), where not all can.
    `hf_architectures` are names of config.json's `architectures`, or patterns of them ("*ForX"; exact names win);
    `diffusers_class_name` is the name in model_index.json, or such a pattern of it.
    `hf_voices` names `voices(config: Mapping) -> tuple[str, ...]` for models whose config.json lists them; they replace `voices`.
    `hf_config_predicate` names `predicate(config: Mapping) -> bool`, asked where an architecture alone does not decide.
    `default_deploy_config_name` names a file of the package's folder deploy/.
    """

    model_type: str
    model_arch: str
    stages: tuple[StagePipelineConfig, ...]
    hf_architectures: tuple[str, ...] = ()
    hf_config_predicate: str | None = None
    diffusers_class_name: str | None = None
    endpoint_restrictions: tuple[str, ...] = ()
    default_deploy_config_name: str | None = None
    stage_cli_aliases: Mapping[str, int] = field(default_factory=dict)
    voices: tuple[str, ...] = ()
    reads: tuple[str, ...] = ("text",)
    default_modalities: tuple[str, ...] = ()
    hf_voices: str | None = None
    locate: str | None = None
    fetch: str | None = None

    def __post_init__(self) -> None:
        errors = list(_graph_errors(self))
        if errors:
            raise ConfigError(f"pipeline {self.model_type!r}: {'; '.join(errors)}", field="pipeline")

    @property
    def edges(self) -> tuple[Edge, ...]:
        return tuple(edge for stage in self.stages for edge in stage.edges)

    def stage(self, stage_id: int) -> StagePipelineConfig:
        """The stage of that id; the id is one of this pipeline's."""
        return next(stage for stage in self.stages if stage.stage_id == stage_id)


def _graph_errors(pipeline: PipelineConfig) -> Iterator[str]:
    if not pipeline.stages:
        yield "no stage"
        return
    ids = [stage.stage_id for stage in pipeline.stages]
    yield from (f"duplicate stage id {stage_id}" for stage_id, count in Counter(ids).items() if count > 1)
    names = Counter(stage.model_stage for stage in pipeline.stages)
    yield from (f"duplicate model_stage {name!r}" for name, count in names.items() if count > 1)
    for stage in pipeline.stages:
        yield from (f"stage {stage.stage_id}: {error}" for error in _stage_errors(stage))
        for edge in stage.edges:
            yield from (f"edge {edge.source} -> {edge.target}: {error}" for error in _edge_errors(edge, stage, ids))
        yield from _duplicate_edges(stage)
    yield from _topology_errors(pipeline)
    yield from _surface_errors(pipeline, ids)
    for name in (pipeline.hf_config_predicate, pipeline.hf_voices, pipeline.locate, pipeline.fetch):
        yield from _hook_errors(name)


def _surface_errors(pipeline: PipelineConfig, ids: list[int]) -> Iterator[str]:
    """What callers and operators meet: other names of stages, endpoints, modalities."""
    for alias, stage_id in pipeline.stage_cli_aliases.items():
        if stage_id not in ids:
            yield f"stage_cli_aliases[{alias!r}]: there is no stage {stage_id}; accepted: {_listed(ids)}"
    for path in pipeline.endpoint_restrictions:
        if not path.startswith("/v1/"):
            yield f"endpoint_restrictions: {path!r} is not accepted; accepted: paths below /v1/"
    if not pipeline.reads or not set(pipeline.reads) <= set(READABLE):
        yield f"reads: {pipeline.reads} is not accepted; accepted: one or more of {', '.join(READABLE)}"
    makes = tuple(stage.final_output_type for stage in pipeline.stages if stage.final_output)
    for modality in pipeline.default_modalities:
        if modality not in makes:
            yield f"default_modalities: {modality!r} is not accepted; accepted: {', '.join(map(str, makes))}"


def _stage_errors(stage: StagePipelineConfig) -> Iterator[str]:
    if stage.stage_id < 0:
        yield "an id is an integer >= 0"
    if not stage.model_stage:
        yield "model_stage is empty"
    if stage.final_output and stage.final_output_type not in MODALITIES:
        yield f"final_output_type {stage.final_output_type!r} is not accepted; accepted: {', '.join(MODALITIES)}"
    if stage.item_nbytes < 0:
        yield f"item_nbytes {stage.item_nbytes} is not accepted; accepted: an integer >= 0"
    if stage.package is not None and package_folder(stage.package) is None:
        yield f"package: there is no package {stage.package!r} with a folder of its own"
    for name in (stage.loader, stage.processor, stage.bridge):
        yield from _hook_errors(name)
    try:
        params_from(stage.execution_type.params, dict(stage.sampling_constraints), where="sampling_constraints.")
    except InvalidRequestError as error:
        yield error.message


def _edge_errors(edge: Edge, stage: StagePipelineConfig, ids: list[int]) -> Iterator[str]:
    if edge.target != stage.stage_id:
        yield f"stands at stage {stage.stage_id}; an edge stands at its target"
    if edge.source == edge.target:
        yield "a stage cannot be its own source"
    elif edge.source not in ids:
        yield f"unknown source {edge.source}; accepted: {_listed(ids)}"
    for key, value in (("window", edge.window), ("chunk.first", edge.chunk.first), ("chunk.later", edge.chunk.later)):
        if value < 1:
            yield f"{key} {value} is not accepted; accepted: an integer >= 1"
    if edge.item_nbytes < 0:
        yield f"item_nbytes {edge.item_nbytes} is not accepted; accepted: an integer >= 0"
    yield from _hook_errors(edge.select)


def _duplicate_edges(stage: StagePipelineConfig) -> Iterator[str]:
    counts = Counter(stage.input_sources)
    yield from (f"duplicate edge {source} -> {stage.stage_id}" for source, count in counts.items() if count > 1)


def _topology_errors(pipeline: PipelineConfig) -> Iterator[str]:
    """No entry, no final output, cycles, and stages that nothing reaches or that lead nowhere."""
    forward: dict[int, set[int]] = {stage.stage_id: set() for stage in pipeline.stages}
    backward: dict[int, set[int]] = {stage.stage_id: set() for stage in pipeline.stages}
    for edge in pipeline.edges:
        if edge.source in forward and edge.target in forward:
            forward[edge.source].add(edge.target)
            backward[edge.target].add(edge.source)
    entries = {stage.stage_id for stage in pipeline.stages if not stage.edges}
    finals = {stage.stage_id for stage in pipeline.stages if stage.final_output}
    if not entries:
        yield "no entry stage (one without edges)"
    if not finals:
        yield "no final output"
    cyclic = sorted(stage for stage in forward if stage in _reached(forward, forward[stage]))
    if cyclic:
        yield f"cycle through stages {_listed(cyclic)}"
    reached = _reached(forward, entries)
    if entries and (lost := [stage for stage in forward if stage not in reached]):
        yield f"unreachable stages {_listed(lost)}: no path from an entry"
    leading = _reached(backward, finals)
    if finals and (idle := [stage for stage in forward if stage not in leading]):
        yield f"stages {_listed(idle)} lead to no final output"


def _reached(neighbours: Mapping[int, set[int]], start: set[int]) -> set[int]:
    """`start` and everything that can be reached from it."""
    seen: set[int] = set()
    waiting = sorted(start)
    while waiting:
        stage = waiting.pop()
        if stage not in seen:
            seen.add(stage)
            waiting.extend(neighbours[stage])
    return seen


def _hook_errors(name: str | None) -> Iterator[str]:
    fault = None if name is None else hook_fault(name)
    if fault is not None:
        yield fault


def _listed(ids: list[int]) -> str:
    return ", ".join(str(stage_id) for stage_id in ids)
