"""What a driver and its worker say to each other, around the messages that the machine knows (wire.messages).

driver --ToWorker--> worker --FromWorker--> driver     (StepReport's items reach the machine inside `Reported`)
"""

from __future__ import annotations

from omnistage.core.errors import ErrorInfo
from omnistage.wire.messages import Cancel, Control, Feed, Grant, ItemArrived, Message, Release, Submit, WorkerEvent


class Shutdown(Message, frozen=True, kw_only=True):
    """The worker ends after its current step."""


ToWorker = Submit | Feed | Grant | Cancel | Release | Control | Shutdown


class Hello(Message, frozen=True, kw_only=True):
    """First word of a worker after it has connected."""

    process: str
    replica: int
    epoch: int
    pid: int


class LoadProgress(Message, frozen=True, kw_only=True):
    """`fraction` in [0, 1] of one stage's loading; `note` is one line for people."""

    stage_id: int
    fraction: float
    note: str = ""


class Ready(Message, frozen=True, kw_only=True):
    """All stages of this worker are loaded and their hooks have resolved. `capacity` as in ReplicaUp; `notes` by stage id."""

    capacity: dict[int, int]
    notes: dict[int, str] = {}


class LoadFailed(Message, frozen=True, kw_only=True):
    """The worker cannot start; it exits after this."""

    stage_id: int
    error: ErrorInfo


class StepReport(Message, frozen=True, kw_only=True):
    """Everything one step (of any stage in this worker) has to say, one message for all its requests. `at_s` is the worker's
    monotonic clock; `arrivals` are the items that have come to this worker since its last report."""

    items: tuple[WorkerEvent, ...]
    at_s: float = 0.0
    arrivals: tuple[ItemArrived, ...] = ()


class Heartbeat(Message, frozen=True, kw_only=True):
    """Sent every second. `step_age_s` by stage id: for how long the current step has been running (0 when idle).
    `gauges`: the stage's figures for metrics (running, waiting, kv_blocks_used, ...), by stage id."""

    step_age_s: dict[int, float]
    first_step_done: dict[int, bool] = {}
    gauges: dict[int, dict[str, float]] = {}
    arena_used_nbytes: int = 0


FromWorker = Hello | LoadProgress | Ready | LoadFailed | StepReport | Heartbeat
