"""What the supervisor keeps of one running worker, and the words it has for it. Starts and ends nothing."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from omnistage.config.stage import StageConfig
from omnistage.runtime.launch import Launched
from omnistage.runtime.output import WorkerOutput
from omnistage.runtime.plan import ProcessPlan
from omnistage.runtime.status import Key
from omnistage.wire.worker import Heartbeat


@dataclass(slots=True)
class WorkerState:
    """One running worker. `reason`: why it is being ended, if this side knows; it goes before what the worker said last.
    At `kill_at` it is killed because of `overdue`; the log says no more of its loading before `tell_at`."""

    plan: ProcessPlan
    replica: int
    epoch: int
    identity: str
    launched: Launched
    output: WorkerOutput
    start_by: float
    kill_at: float = math.inf
    overdue: str = ""
    heard_by: float = math.inf
    tell_at: float = 0.0
    doubted: bool = False
    ready: bool = False
    stopping: bool = False
    reason: str = ""
    fractions: dict[int, float] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.plan.name, self.replica

    @property
    def owner(self) -> str:
        return f"{self.plan.name}/{self.replica}"

    @property
    def deadline(self) -> float:
        return min(self.kill_at, self.heard_by, math.inf if self.ready else self.start_by)

    @property
    def progress(self) -> float:
        return sum(self.fractions.values()) / len(self.plan.stages)


def told_of(plan: ProcessPlan, reason: str) -> str:
    """`reason` with whose it is, unless it says so itself, as a stage's errors of configuration do."""
    return reason if reason.startswith(f"{plan.title}: ") else f"{plan.title}: {reason}"


def last_words(code: int | None, last_line: str) -> str:
    """Why a worker ended, as far as its exit code and its last line of output tell. Who is killed from outside says nothing of it:
    what it wrote before is about something else."""
    match code:
        case None:
            how = "ended, nobody saw how"
        case _ if code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        case _:
            how = f"exited with code {code}"
    return f"{how}: {last_line}" if last_line and code != -signal.SIGKILL else how


def gauges_of(plan: ProcessPlan, message: Heartbeat) -> dict[str, dict[str, float]]:
    """By stage name. The arena is the process's; it stands with its first stage, so that sums over stages are right."""
    gauges = {stage.model_stage: dict(message.gauges.get(stage.stage_id, {})) for stage in plan.stages}
    gauges[plan.stages[0].model_stage]["arena_used_nbytes"] = message.arena_used_nbytes
    return gauges


def step_limit_s(stage: StageConfig, first_step_done: Mapping[int, bool]) -> float:
    return stage.step_timeout_s if first_step_done.get(stage.stage_id) else stage.first_step_timeout_s
