"""Short words for trace tests: a machine driven event by event, and what it answered.

`given = Trace(stage(0, "text"), ...)`; every verb (`arrive`, `emit`, `done`, ...) handles one event at the trace's `now` and
returns the commands. Stages run in the process "p<stage id>" unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnistage.core.errors import ErrorInfo
from omnistage.core.payload import PayloadRef
from omnistage.core.request import OmniRequest, Prompt, StageTimes, Usage
from omnistage.orchestrator.machine import Orchestrator
from omnistage.orchestrator.plan import EdgePlan, Limits, OrchestratorConfig, StagePlan
from omnistage.wire.messages import (
    AbortRequested,
    Arrived,
    CancelDone,
    ClientTook,
    Command,
    Consumed,
    ControlCalled,
    ControlDone,
    CopiedOut,
    Emitted,
    Event,
    InputAppended,
    ReplicaDown,
    ReplicaState,
    ReplicaUp,
    Reported,
    ShutdownRequested,
    StageDone,
    StageFailed,
    Tick,
    WakeAt,
    WorkerEvent,
)


def stage(stage_id: int, makes: str | None = None, **keys: Any) -> StagePlan:
    return StagePlan(
        **{"stage_id": stage_id, "name": f"s{stage_id}", "process": f"p{stage_id}", **keys}, final_output_type=makes
    )


def edge(source: int, target: int, window: int = 4, *, streaming: bool = True) -> EdgePlan:
    return EdgePlan(source, target, streaming=streaming, window=window)


def config(
    *parts: StagePlan | EdgePlan, replicas: dict[str, int] | None = None, limits: Limits | None = None
) -> OrchestratorConfig:
    stages = tuple(part for part in parts if isinstance(part, StagePlan))
    return OrchestratorConfig(
        stages=stages,
        edges=tuple(part for part in parts if isinstance(part, EdgePlan)),
        processes={plan.process: (replicas or {}).get(plan.process, 1) for plan in stages},
        limits=limits or Limits(),
    )


def request(request_id: str = "r", wants: Sequence[str] = ("text",), **keys: Any) -> OmniRequest:
    return OmniRequest(request_id=request_id, prompt=Prompt(text="hello"), wants=tuple(wants), stage_params={}, **keys)


def ref(key: int, nbytes: int = 100, owner: str = "p0/0", **keys: Any) -> PayloadRef:
    return PayloadRef(connector="shm", owner=owner, epoch=1, key=key, nbytes=nbytes, **keys)


def of(kind: type, commands: Sequence[Command]) -> list[Any]:
    """The commands of one kind."""
    return [command for command in commands if isinstance(command, kind)]


def kinds(commands: Sequence[Command]) -> list[str]:
    """Names of the commands, alarms left out."""
    return [type(command).__name__ for command in commands if not isinstance(command, WakeAt)]


class Trace:
    """A machine, the time, and everything that was handled and told."""

    def __init__(
        self,
        *parts: StagePlan | EdgePlan,
        replicas: dict[str, int] | None = None,
        limits: Limits | None = None,
        up: bool = True,
    ) -> None:
        self.config = config(*parts, replicas=replicas, limits=limits)
        self.machine = Orchestrator(self.config)
        self.now = 0.0
        self.events: list[Event] = []
        self.told: list[list[Command]] = [self.machine.start(0.0)]
        if up:
            for process, count in self.config.processes.items():
                for replica in range(count):
                    self.up(process, replica)

    @property
    def tables(self) -> dict[str, Any]:
        return self.machine.snapshot()

    def handle(self, event: Event) -> list[Command]:
        self.events.append(event)
        self.told.append(self.machine.handle(event))
        return self.told[-1]

    def at(self, now: float) -> Trace:
        self.now = now
        return self

    # ---- callers

    def arrive(self, request_id: str = "r", wants: Sequence[str] = ("text",), **keys: Any) -> list[Command]:
        return self.handle(Arrived(now=self.now, request=request(request_id, wants, **keys)))

    def append(self, seq: int, ref: PayloadRef | None, *, last: bool = False, request_id: str = "r") -> list[Command]:
        return self.handle(InputAppended(now=self.now, request_id=request_id, seq=seq, ref=ref, last=last))

    def abort(self, request_id: str = "r") -> list[Command]:
        return self.handle(AbortRequested(now=self.now, request_id=request_id))

    def take(self, source: int, seq: int, attempt: int = 1, request_id: str = "r") -> list[Command]:
        return self.handle(ClientTook(now=self.now, request_id=request_id, attempt=attempt, source=source, seq=seq))

    def shut_down(self, drain_timeout_s: float) -> list[Command]:
        return self.handle(ShutdownRequested(now=self.now, drain_timeout_s=drain_timeout_s))

    def call(self, name: str = "sleep", **keys: Any) -> list[Command]:
        return self.handle(ControlCalled(now=self.now, call_id=keys.pop("call_id", "c"), name=name, **keys))

    def tick(self, now: float | None = None) -> list[Command]:
        self.now = self.now if now is None else now
        return self.handle(Tick(now=self.now))

    # ---- replicas

    def up(
        self, process: str, replica: int = 0, epoch: int = 1, capacity: dict[int, int] | None = None
    ) -> list[Command]:
        sizes = capacity or {plan.stage_id: plan.max_num_seqs for plan in self.config.stages_of(process)}
        return self.handle(ReplicaUp(now=self.now, process=process, replica=replica, epoch=epoch, capacity=sizes))

    def down(self, process: str, replica: int = 0, epoch: int = 1, reason: str = "signal 9") -> list[Command]:
        return self.handle(ReplicaDown(now=self.now, process=process, replica=replica, epoch=epoch, reason=reason))

    def becomes(self, state: Any, process: str, replica: int = 0, epoch: int = 1) -> list[Command]:
        return self.handle(ReplicaState(now=self.now, process=process, replica=replica, epoch=epoch, state=state))

    def report(self, process: str, *items: WorkerEvent, replica: int = 0, epoch: int = 1) -> list[Command]:
        return self.handle(Reported(now=self.now, process=process, replica=replica, epoch=epoch, items=items))

    def say(self, stage_id: int, item: WorkerEvent, **keys: Any) -> list[Command]:
        """One item from the process of a stage."""
        return self.report(self.config.stage(stage_id).process, item, **keys)

    def emit(
        self,
        source: int,
        target: int,
        seq: int,
        ref: PayloadRef | None,
        *,
        last: bool = False,
        progress: bool = False,
        request_id: str = "r",
        attempt: int = 1,
        **keys: Any,
    ) -> list[Command]:
        item = Emitted(
            request_id=request_id,
            attempt=attempt,
            source=source,
            target=target,
            seq=seq,
            ref=ref,
            last=last,
            progress=progress,
        )
        return self.say(source, item, **keys)

    def consume(
        self, source: int, target: int, seq: int, request_id: str = "r", attempt: int = 1, **keys: Any
    ) -> list[Command]:
        item = Consumed(request_id=request_id, attempt=attempt, source=source, target=target, seq=seq)
        return self.say(target, item, **keys)

    def copied_out(self, source: int, target: int, seq: int, request_id: str = "r") -> list[Command]:
        item = CopiedOut(request_id=request_id, attempt=1, source=source, target=target, seq=seq)
        return self.say(target, item)

    def done(self, stage_id: int, request_id: str = "r", attempt: int = 1, **keys: Any) -> list[Command]:
        return self.say(stage_id, stage_done(stage_id, request_id, attempt), **keys)

    def failed(self, stage_id: int, request_id: str = "r", attempt: int = 1, **keys: Any) -> list[Command]:
        error = ErrorInfo("stage_failed", "ValueError: no", stage=f"s{stage_id}")
        item = StageFailed(request_id=request_id, attempt=attempt, stage_id=stage_id, error=error)
        return self.say(stage_id, item, **keys)

    def cancelled(self, stage_id: int, request_id: str = "r", attempt: int = 1, **keys: Any) -> list[Command]:
        return self.say(stage_id, CancelDone(request_id=request_id, attempt=attempt, stage_id=stage_id), **keys)

    def answer(self, stage_id: int, result: Any = None, call_id: str = "c", **keys: Any) -> list[Command]:
        error = keys.pop("error", None)
        return self.say(stage_id, ControlDone(call_id=call_id, stage_id=stage_id, result=result, error=error), **keys)


def stage_done(stage_id: int, request_id: str = "r", attempt: int = 1) -> StageDone:
    return StageDone(
        request_id=request_id,
        attempt=attempt,
        stage_id=stage_id,
        reason="stop",
        usage=Usage(completion_tokens=stage_id + 1),
        times=StageTimes(running_s=1.0),
    )


def expect_empty(given: Trace) -> None:
    """Nothing is left in any table."""
    tables = given.tables
    assert (tables["open"], tables["slots"], tables["refs_held"]) == (0, 0, 0), tables
    assert not any(tables["queues"].values()), tables
    assert tables["timers"] == 0, tables
