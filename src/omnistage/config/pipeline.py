"""What the author of a model writes: the stages of a pipeline, how they are joined, which hooks they use. Frozen topology.

Hooks are dotted names ("package.module:attribute") and are resolved in the worker that needs them; this module imports no
model, no torch, and starts nothing. All errors of a graph come in one `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal


class ExecutionType(StrEnum):
    """The loop a stage runs in."""

    LLM_AR = "llm_ar"
    LLM_GENERATION = "llm_generation"
    DIFFUSION = "diffusion"


@dataclass(frozen=True, slots=True)
class ChunkPolicy:
    """When a sender sends what it has gathered for a streaming edge.

    `unit`: "frames" or "rows" count the first axis of the payload's tensors, "items" counts captures. It sends at >= `first`
    while nothing of the request is in flight, else at `later`; `adaptive` False pins the schedule (`first`, then `later`).
    """

    unit: Literal["frames", "rows", "items"] = "items"
    first: int = 1
    later: int = 1
    adaptive: bool = True


@dataclass(frozen=True, slots=True)
class Edge:
    """From `source` to `target` (stage ids). `select` names `select(capture, request) -> MultimodalPayload | None`, run in
    the sender; None sends everything captured. `window`: items that may be unacknowledged. `modalities`: the edge exists only
    for requests that want one of these ("" means whatever the target leads to)."""

    source: int
    target: int
    select: str | None = None
    streaming: bool = True
    window: int = 4
    chunk: ChunkPolicy = ChunkPolicy()


@dataclass(frozen=True, slots=True)
class StagePipelineConfig:
    """One stage.

    `loader` names `load(config: StageConfig) -> model` for the stage's runner (protocols in modeling.protocols).
    `processor` (entry stages) names `load(config) -> Processor`, `bridge` (others) names
    `bridge(state, source, seq, payload, last) -> (state, list[StageInput])`. `sampling_constraints` always win over callers.
    `edges` are the stage's incoming edges.
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
    model_subdir: str | None = None
    tokenizer_subdir: str | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)

    @property
    def input_sources(self) -> tuple[int, ...]:
        return tuple(edge.source for edge in self.edges)


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """A pipeline: a directed acyclic graph of stages, with at least one entry (no edges) and one final output.

    `locate` names `locate(model: str) -> Path` for models that are no folder (built-in ones); `fetch` names
    `fetch(progress) -> Path`. `voices` and `endpoint_restrictions` tell the server what the model can do.
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
    locate: str | None = None
    fetch: str | None = None
