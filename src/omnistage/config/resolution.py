"""The frozen plan that everything is started from: what `resolve_omni_config` makes. Values only, no reading of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omnistage.config.pipeline import Edge, PipelineConfig
from omnistage.config.stage import StageConfig

CLIENT_WINDOW_ITEMS = 4
"""Items of one request's final output that an arena has room for, beside what a caller's byte window allows."""


@dataclass(frozen=True, slots=True)
class DeployConfig:
    """Values of the whole pipeline; names, units and meanings as in config.keys.

    `voices` maps other names to the model's voices, `connectors` names to kinds; `platform` chose the platform section.
    """

    platform: str
    async_chunk: bool
    inline: bool
    engine_process: bool
    processor_workers: int
    zygote: bool
    client_stall_s: float
    client_window_nbytes: int
    arena_oversize_nbytes: int
    request_timeout_s: float
    max_queued_requests: int
    drain_timeout_s: float
    voices: Mapping[str, str]
    connectors: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ProcessPlacement:
    """The stages that share a worker. `arena_nbytes` is the size of one replica's arena: the sum over the edges that leave
    the process through it of max_num_seqs x window x item_nbytes, and what config.stage.arena_nbytes adds; 0 where every
    payload travels inline. `tcp_nbytes` is the same sum over the edges that leave it by tcp."""

    name: str
    stage_ids: tuple[int, ...]
    num_replicas: int
    env: Mapping[str, str]
    arena_nbytes: int
    tcp_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class OmniConfigResolution:
    """`stages` in the pipeline's order, `edges` with the operator's windows and chunks. `provenance`: the source of every
    value by path ("stages.0.max_num_seqs": "cli"); `warnings` are single lines for the operator."""

    model: str
    model_path: Path | None
    pipeline: PipelineConfig
    deploy: DeployConfig
    stages: tuple[StageConfig, ...]
    edges: tuple[Edge, ...]
    processes: tuple[ProcessPlacement, ...]
    provenance: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    def stage(self, stage_id: int) -> StageConfig:
        """The stage of that id; the id is one of this pipeline's."""
        return next(stage for stage in self.stages if stage.stage_id == stage_id)

    def connector_of(self, edge: Edge) -> str:
        """How payloads of an edge travel: by reference inside a process, through an arena between processes."""
        return next(output.connector for output in self.stage(edge.source).outputs if output.target == edge.target)
