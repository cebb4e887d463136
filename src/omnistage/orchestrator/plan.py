"""What the machine knows of a pipeline: stages, edges, processes and limits, and the part of the graph a request needs.

Frozen values, made once from the resolved configuration. Knows nothing of models, hooks, tensors or requests in flight.
Times in seconds, sizes in bytes, windows in items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from omnistage.config.pipeline import Edge
from omnistage.config.stage import StageConfig
from omnistage.wire.messages import CLIENT

TEXT = "text"
"""The one modality that is never windowed: it is bounded by the number of tokens."""

PAUSED_PER_PLACE = 4
"""Requests that wait for their callers and so take no place, for every place of a stage; what they hold in host memory is bounded
by this. More than that take places like any other."""

CANCEL_MARGIN_S = 5.0
"""On top of the longest step: a stage reads a cancel between two steps."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage. `max_num_seqs` holds until a replica says its own capacity. `item_nbytes` estimates one item for the caller.
    `cancel_timeout_s`: when CancelDone is due."""

    stage_id: int
    name: str
    process: str
    max_num_seqs: int = 8
    lookahead: int = 2
    paused_per_place: int = PAUSED_PER_PLACE
    final_output_type: str | None = None
    item_nbytes: int = 0
    cancel_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class EdgePlan:
    """`window` items may be unacknowledged on a streaming edge; 0, or an edge that does not stream, means no window."""

    source: int
    target: int
    streaming: bool = True
    window: int = 4

    @property
    def windowed(self) -> bool:
        return self.streaming and self.window > 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds and deadlines of the machine.

    A request's own `timeout_s` is cut to `request_timeout_s`. A replica that died waits `restart_first_s`, doubled for every
    further death in `strike_window_s`, at most `restart_most_s`; `strikes` deaths in that time and it stays down.
    """

    max_queued_requests: int = 256
    request_timeout_s: float = 600.0
    client_window_nbytes: int = 2 * 2**20
    client_window_items: int = 8
    client_stall_s: float = 30.0
    retry_after_s: float = 1.0
    restart_first_s: float = 0.5
    restart_most_s: float = 30.0
    strikes: int = 3
    strike_window_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ActiveGraph:
    """The stages and edges one request uses, edges to the caller included; a request that wants nothing known has none."""

    stages: tuple[int, ...]
    edges: tuple[EdgePlan, ...]

    @property
    def entries(self) -> tuple[int, ...]:
        fed = {edge.target for edge in self.edges}
        return tuple(stage for stage in self.stages if stage not in fed)


@dataclass(frozen=True, slots=True)
class OrchestratorConfig:
    """The pipeline as the machine sees it. `processes`: name -> number of replicas."""

    stages: tuple[StagePlan, ...]
    edges: tuple[EdgePlan, ...] = ()
    processes: Mapping[str, int] = field(default_factory=dict)
    limits: Limits = Limits()

    @classmethod
    def of(
        cls, stages: Sequence[StageConfig], edges: Sequence[Edge], limits: Limits | None = None
    ) -> OrchestratorConfig:
        """From the resolved stages and the pipeline's edges (windows and streaming as deployed)."""
        return cls(
            stages=tuple(_stage_plan(stage) for stage in stages),
            edges=tuple(EdgePlan(edge.source, edge.target, edge.streaming, edge.window) for edge in edges),
            processes={stage.process: stage.num_replicas for stage in stages},
            limits=limits or Limits(),
        )

    def stage(self, stage_id: int) -> StagePlan:
        return next(stage for stage in self.stages if stage.stage_id == stage_id)

    def stages_of(self, process: str) -> tuple[StagePlan, ...]:
        return tuple(stage for stage in self.stages if stage.process == process)

    def missing(self, wants: Sequence[str]) -> tuple[str, ...]:
        """The wanted modalities that no stage makes."""
        made = {stage.final_output_type for stage in self.stages}
        return tuple(modality for modality in wants if modality not in made)

    def active(self, wants: Sequence[str]) -> ActiveGraph:
        """The graph cut down to what the wanted modalities need."""
        finals = [stage.stage_id for stage in self.stages if stage.final_output_type in wants]
        needed = set(finals)
        todo = list(finals)
        while todo:
            target = todo.pop()
            sources = [edge.source for edge in self.edges if edge.target == target and edge.source not in needed]
            needed.update(sources)
            todo.extend(sources)
        inner = [edge for edge in self.edges if edge.source in needed and edge.target in needed]
        outer = [self._client_edge(stage) for stage in self.stages if stage.stage_id in finals]
        return ActiveGraph(
            stages=tuple(stage.stage_id for stage in self.stages if stage.stage_id in needed),
            edges=(*inner, *outer),
        )

    def _client_edge(self, stage: StagePlan) -> EdgePlan:
        """No more credit for media than the window in bytes has room for: what may be made may also be sent, and lies in no
        arena until the caller takes something."""
        if stage.final_output_type == TEXT:
            return EdgePlan(stage.stage_id, CLIENT, window=0)
        limits = self.limits
        fitting = limits.client_window_nbytes // max(1, stage.item_nbytes)
        return EdgePlan(stage.stage_id, CLIENT, window=max(1, min(limits.client_window_items, fitting)))


def _stage_plan(stage: StageConfig) -> StagePlan:
    return StagePlan(
        stage_id=stage.stage_id,
        name=stage.model_stage,
        process=stage.process,
        max_num_seqs=stage.max_num_seqs,
        lookahead=stage.lookahead,
        final_output_type=stage.final_output_type,
        item_nbytes=next((edge.item_nbytes for edge in stage.outputs if edge.target == CLIENT), 0),
        cancel_timeout_s=max(stage.first_step_timeout_s, stage.step_timeout_s) + CANCEL_MARGIN_S,
    )
