"""What the machine hears and says: events and commands, in one place. `wire.worker` adds what only a worker and its driver say.

All are small frozen tagged structs (msgspec); none holds a tensor. Times are seconds of the driver's monotonic clock and come
in as fields (`now`). A *stage* is named by its id; a *replica* by (process, index), because stages that share a process are
placed together; an *epoch* counts the incarnations of a replica. An *edge* is (source stage, target stage), where the target
CLIENT (-1) stands for the caller. An *attempt* counts the runs of a request from its beginning (1 is the first).

    shell  --Event-->  machine  --Command-->  shell
    worker --WorkerEvent--> driver --Reported--> machine
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from omnistage.config.stage import CLIENT as CLIENT  # an edge to the caller has it in messages as in configurations
from omnistage.core.errors import ErrorInfo
from omnistage.core.payload import PayloadRef
from omnistage.core.request import OmniRequest, StageTimes, Usage

Outcome = Literal["finished", "failed", "aborted", "timed_out"]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Base of all messages: the type travels as a tag. None can be part of a cycle, so the collector need not look."""


# ---- what a worker reports of its requests (items of a StepReport) ---------------------------------------------------------


class Emitted(Message, frozen=True, kw_only=True):
    """`source` put item `seq` (0, 1, ...) for `target`. `ref` None carries no payload, only the end (`last`).

    `units`: rows or frames, where the edge counts in those, for measurements. `progress`: how far the source is, no more."""

    request_id: str
    attempt: int
    source: int
    target: int
    seq: int
    ref: PayloadRef | None
    last: bool
    units: int | None = None
    progress: bool = False


class Consumed(Message, frozen=True, kw_only=True):
    """The bridge of `target` has returned for items up to and including `seq` of `source`: their credit and refs are free."""

    request_id: str
    attempt: int
    source: int
    target: int
    seq: int


class CopiedOut(Message, frozen=True, kw_only=True):
    """`target` has copies of its own of items up to and including `seq` of `source` that its bridge has yet to take: their refs
    are free, their credit is not."""

    request_id: str
    attempt: int
    source: int
    target: int
    seq: int


class StageDone(Message, frozen=True, kw_only=True):
    """The stage has ended this request by itself, after its last items. `reason`: stop | length | eos | done."""

    request_id: str
    attempt: int
    stage_id: int
    reason: str
    usage: Usage
    times: StageTimes


class StageFailed(Message, frozen=True, kw_only=True):
    """The stage ended this request with an error; it holds nothing of it any more."""

    request_id: str
    attempt: int
    stage_id: int
    error: ErrorInfo


class CancelDone(Message, frozen=True, kw_only=True):
    """The answer to `Cancel`, always, also for a request the stage has never seen or has ended."""

    request_id: str
    attempt: int
    stage_id: int


class ControlDone(Message, frozen=True, kw_only=True):
    """The answer of one stage to `Control`."""

    call_id: str
    stage_id: int
    result: Any = None
    error: ErrorInfo | None = None


class ItemArrived(Message, frozen=True, kw_only=True):
    """Item `seq` of `source` was within reach of `target`'s worker at `at_s`, its monotonic clock. For measurements alone."""

    request_id: str
    attempt: int
    source: int
    target: int
    seq: int
    at_s: float


WorkerEvent = Emitted | Consumed | CopiedOut | StageDone | StageFailed | CancelDone | ControlDone


# ---- events: what happens to the machine -----------------------------------------------------------------------------------


class Arrived(Message, frozen=True, kw_only=True):
    now: float
    request: OmniRequest


class InputAppended(Message, frozen=True, kw_only=True):
    """More input for an open request (`seq` 0, 1, ...); it makes the request non-replayable."""

    now: float
    request_id: str
    seq: int
    ref: PayloadRef | None
    last: bool


class AbortRequested(Message, frozen=True, kw_only=True):
    """The caller gave up (disconnect, abort call). `reason` becomes the terminal state's message."""

    now: float
    request_id: str
    reason: str = "aborted by the caller"


class ClientTook(Message, frozen=True, kw_only=True):
    """The caller has taken item `seq` of `source`: its bytes leave the request's client window."""

    now: float
    request_id: str
    attempt: int
    source: int
    seq: int


class Reported(Message, frozen=True, kw_only=True):
    """What one replica said in one report. Items of another epoch than the replica's current one come from the dead.

    `at_s` is when it was said, on the worker's monotonic clock (0: unknown): it emitted then what it says it has emitted. That
    clock is the driver's where both are on one host. `at_s` and `arrivals` are for measurements, no decision rests on them.
    """

    now: float
    process: str
    replica: int
    epoch: int
    items: tuple[WorkerEvent, ...]
    at_s: float = 0.0
    arrivals: tuple[ItemArrived, ...] = ()


class ReplicaUp(Message, frozen=True, kw_only=True):
    """A replica is ready. `capacity`: requests each of its stages runs at once (max_num_seqs), by stage id."""

    now: float
    process: str
    replica: int
    epoch: int
    capacity: dict[int, int]


class ReplicaState(Message, frozen=True, kw_only=True):
    """A replica takes no new requests while `draining` or `sleeping`.

    No shell says so by itself: a signal reaches all of a group at once, so workers ignore those that ask for an end, and the
    server alone drains (`ShutdownRequested`). It is for whoever takes one replica of several out of service.
    """

    now: float
    process: str
    replica: int
    epoch: int
    state: Literal["active", "draining", "sleeping"]


class ReplicaDown(Message, frozen=True, kw_only=True):
    """A replica is gone (death seen by the supervisor, failed start, stuck step killed). `reason` is one line."""

    now: float
    process: str
    replica: int
    epoch: int
    reason: str


class ControlCalled(Message, frozen=True, kw_only=True):
    """A control call (tokenize, profile, sleep, ...) for the named stages, or all; it never stands in the way of requests."""

    now: float
    call_id: str
    name: str
    arguments: dict[str, Any] = {}
    stage_ids: tuple[int, ...] = ()
    timeout_s: float = 30.0


class ShutdownRequested(Message, frozen=True, kw_only=True):
    """No new requests from now on; what is open may end until `drain_timeout_s`, then it is aborted and replicas stop."""

    now: float
    drain_timeout_s: float


class Tick(Message, frozen=True, kw_only=True):
    """The time that the last `WakeAt` asked for has come (or later)."""

    now: float


Event = (
    Arrived
    | InputAppended
    | AbortRequested
    | ClientTook
    | Reported
    | ReplicaUp
    | ReplicaState
    | ReplicaDown
    | ControlCalled
    | ShutdownRequested
    | Tick
)


# ---- commands: what the machine wants done -----------------------------------------------------------------------------------


class Submit(Message, frozen=True, kw_only=True):
    """Start `request` in `stage_id` on a replica. `order` is the request's place in the total order, smaller first.

    Outputs go only to `active_targets` (stage ids, CLIENT): nothing is captured for the others.
    `windows`: items that may be unacknowledged per target; a target without an entry is not windowed.
    """

    process: str
    replica: int
    epoch: int
    stage_id: int
    request: OmniRequest
    attempt: int
    order: tuple[int, int]
    active_targets: tuple[int, ...]
    windows: dict[int, int] = {}


class Feed(Message, frozen=True, kw_only=True):
    """Item `seq` of `source` for `target`, on the replica where the request's target runs."""

    process: str
    replica: int
    epoch: int
    request_id: str
    attempt: int
    source: int
    target: int
    seq: int
    ref: PayloadRef | None
    last: bool


class Grant(Message, frozen=True, kw_only=True):
    """`credits` more items may be emitted from `source` to `target`."""

    process: str
    replica: int
    epoch: int
    request_id: str
    attempt: int
    source: int
    target: int
    credits: int


class Cancel(Message, frozen=True, kw_only=True):
    """End the request in `stage_id`; CancelDone is the answer."""

    process: str
    replica: int
    epoch: int
    request_id: str
    attempt: int
    stage_id: int


class Release(Message, frozen=True, kw_only=True):
    """Nobody reads `ref` any more. The shell brings it to the ref's owner, or to the keeper of a dead owner's arena."""

    ref: PayloadRef


class Reply(Message, frozen=True, kw_only=True):
    """Item for the caller. `final_output_type` is the source stage's modality. The shell copies the payload out as it carries
    this out, for the machine releases the ref in the same breath."""

    request_id: str
    attempt: int = 1
    source: int
    seq: int
    final_output_type: str
    ref: PayloadRef | None
    last: bool


class Restarted(Message, frozen=True, kw_only=True):
    """The request begins again as `attempt`: what the shell has gathered of earlier attempts is void (never after a streamed
    request's first `Reply`)."""

    request_id: str
    attempt: int


class Close(Message, frozen=True, kw_only=True):
    """The request's one terminal state; nothing for the caller follows. `usage` and `times` by stage id, as far as known."""

    request_id: str
    outcome: Outcome
    error: ErrorInfo | None = None
    usage: dict[int, Usage] = {}
    times: dict[int, StageTimes] = {}
    reasons: dict[int, str] = {}
    attempts: int = 1


class Control(Message, frozen=True, kw_only=True):
    """Ask `stage_id` on a replica to carry out a control call."""

    process: str
    replica: int
    epoch: int
    call_id: str
    stage_id: int
    name: str
    arguments: dict[str, Any] = {}


class ControlReply(Message, frozen=True, kw_only=True):
    """All stages have answered a control call, or its deadline passed. Results by "stage_id/replica"."""

    call_id: str
    results: dict[str, Any] = {}
    error: ErrorInfo | None = None


class StartReplica(Message, frozen=True, kw_only=True):
    process: str
    replica: int
    epoch: int


class StopReplica(Message, frozen=True, kw_only=True):
    """`kill` False lets the worker end its loop first; True ends it at once."""

    process: str
    replica: int
    epoch: int
    kill: bool = False


class WakeAt(Message, frozen=True, kw_only=True):
    """Send `Tick` at this time; a later WakeAt replaces an earlier one."""

    time: float


Command = (
    Submit
    | Feed
    | Grant
    | Cancel
    | Release
    | Reply
    | Restarted
    | Close
    | Control
    | ControlReply
    | StartReplica
    | StopReplica
    | WakeAt
)
