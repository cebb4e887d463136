"""Which worker processes a pipeline needs: its stages, grouped by the process that they name. Pure values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from omnistage.config.stage import StageConfig

ARENA_NBYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """A worker: `stages` run in it together, in `num_replicas` copies. Each copy has an arena of `arena_nbytes`, and
    `arena_oversize_nbytes` for what is too large for it. `upstream`: processes whose payloads it reads. `tcp_nbytes`
    bounds what it has sent by tcp and others have not read; None where it neither sends nor reads so."""

    name: str
    stages: tuple[StageConfig, ...]
    upstream: frozenset[str]
    num_replicas: int
    arena_nbytes: int = ARENA_NBYTES
    arena_oversize_nbytes: int = 0
    tcp_nbytes: int | None = None

    @property
    def title(self) -> str:
        """For messages to people: "stage thinker"."""
        names = ", ".join(stage.model_stage for stage in self.stages)
        return f"stage {names}" if len(self.stages) == 1 else f"stages {names}"

    @property
    def host(self) -> str:
        return self.stages[0].host

    @property
    def threads(self) -> int:
        return max(stage.threads for stage in self.stages)

    @property
    def environment(self) -> dict[str, str]:
        return {name: value for stage in self.stages for name, value in stage.env.items()}

    @property
    def start_timeout_s(self) -> float:
        """Stages of one process load one after the other."""
        return sum(stage.start_timeout_s for stage in self.stages)


def plan_processes(stages: Iterable[StageConfig], *, arena_nbytes: int = ARENA_NBYTES) -> tuple[ProcessPlan, ...]:
    """Groups stages by `process`, in the order in which the processes are first named."""
    stages = tuple(stages)
    by_tcp = {
        end
        for stage in stages
        for output in stage.outputs
        if output.connector == "tcp"
        for end in (stage.stage_id, output.target)
    }
    members: dict[str, list[StageConfig]] = {}
    home: dict[int, str] = {}
    for stage in stages:
        members.setdefault(stage.process, []).append(stage)
        home[stage.stage_id] = stage.process
    return tuple(
        ProcessPlan(
            name=name,
            stages=tuple(own),
            upstream=frozenset(home[source] for stage in own for source in stage.input_sources) - {name},
            num_replicas=own[0].num_replicas,
            arena_nbytes=arena_nbytes,
            tcp_nbytes=arena_nbytes if any(stage.stage_id in by_tcp for stage in own) else None,
        )
        for name, own in members.items()
    )
