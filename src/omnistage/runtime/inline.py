"""The runtime whose stages run in the caller's process: the machine's thread steps them itself, payloads go by reference.

For scripts, notebooks and tests: one replica of each process, no restart, no kill of a stuck step. Every turn gives each stage
that has work one step, so stages stream into one another; the caller's threads stay free (Ctrl+C works). Stages are reached by
dotted name only, so importing this costs no tensor library.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from omnistage.config.hooks import resolve_hook
from omnistage.connectors.inproc import InprocConnector
from omnistage.core.errors import ConnectorError, ErrorInfo, OmniError
from omnistage.core.payload import MultimodalPayload, PayloadRef
from omnistage.obs.figures import FlowObserver
from omnistage.runtime.base import Machine
from omnistage.runtime.loop import RuntimeLoop
from omnistage.runtime.plan import ProcessPlan
from omnistage.wire.messages import (
    Cancel,
    Command,
    Control,
    Feed,
    Grant,
    ItemArrived,
    Release,
    ReplicaDown,
    ReplicaUp,
    Reported,
    StartReplica,
    StopReplica,
    Submit,
    WorkerEvent,
)

logger = logging.getLogger(__name__)

_BUILD_HOST = "omnistage.stages.build:build_host"
_FED = "omnistage.stages.host:Fed"


class Host(Protocol):
    """What this asks of `stages.host.StageHost`."""

    def handle(self, mail: Any) -> None:
        """A Submit, Grant, Cancel, Control, or a Feed with its payload."""

    def room_freed(self) -> None:
        """A reference was released."""

    def has_work(self) -> bool:
        """True if `step` could do something now."""

    def step(self) -> list[WorkerEvent]:
        """One bounded piece of work and what it has to say."""

    def measure(self) -> None:
        """Takes the figures of `gauges` anew."""

    def gauges(self) -> dict[str, float]:
        """Figures for metrics."""


class InlineRuntime(RuntimeLoop):
    """`verify`: payloads are hashed when they are handed over and when they are released (tests)."""

    def __init__(
        self,
        machine: Machine,
        processes: Sequence[ProcessPlan],
        *,
        record_events_path: Path | None = None,
        observer: FlowObserver | None = None,
        verify: bool = False,
    ) -> None:
        super().__init__(machine, processes, record_events_path=record_events_path, observer=observer)
        self._processes = {process.name: process for process in processes}
        self._connector = InprocConnector(verify=verify)
        self._hosts: dict[int, Host] = {}
        self._homes: dict[int, StartReplica] = {}
        self._arrivals: list[ItemArrived] = []
        self._failed: dict[str, str] = {}
        self._build_host: Any = None
        self._fed: Any = None

    # ---- hooks of the loop ----

    def _open(self) -> None:
        self._build_host, self._fed = resolve_hook(_BUILD_HOST), resolve_hook(_FED)

    def _act(self, command: Command) -> None:
        match command:
            case StartReplica():
                self._load(command)
            case StopReplica():
                self._unload(command.process)
            case Release():
                self._connector.release(command.ref)
                for host in self._hosts.values():
                    host.room_freed()
            case Feed():
                self._feed(command)
            case Submit() | Cancel() | Control():
                self._deliver(command.stage_id, command)
            case Grant():
                self._deliver(command.source, command)
            case _:
                raise AssertionError(f"{type(command).__name__} is not for replicas")

    def _read(self, ref: PayloadRef) -> MultimodalPayload:
        return self._connector.get(ref)

    def _holdings(self) -> dict[str, Any]:
        return {"connector": dict(self._connector.health())}

    def _turn(self, now: float) -> None:
        worked = [(stage_id, host) for stage_id, host in self._hosts.items() if host.has_work()]
        for stage_id, host in worked:
            items = tuple(host.step())
            if items:
                self._report(self._homes[stage_id], items)
            host.measure()
        for process in {self._homes[stage_id].process for stage_id, _host in worked}:
            self._show_gauges(process)

    def _report(self, home: StartReplica, items: tuple[WorkerEvent, ...]) -> None:
        now, arrivals = time.monotonic(), tuple(self._arrivals)
        self._arrivals.clear()
        self._post(
            Reported(
                now=now,
                process=home.process,
                replica=home.replica,
                epoch=home.epoch,
                items=items,
                at_s=now,
                arrivals=arrivals,
            )
        )

    def _show_gauges(self, process: str) -> None:
        stages = self._processes[process].stages
        self._board.show_gauges(
            (process, 0), {stage.model_stage: self._hosts[stage.stage_id].gauges() for stage in stages}
        )

    def _deadline(self) -> float:
        return 0.0 if any(host.has_work() for host in self._hosts.values()) else math.inf

    def _running(self) -> bool:
        return False

    def _shut(self) -> None:
        self._hosts.clear()
        self._connector.close()

    # ---- loading and feeding ----

    def _load(self, command: StartReplica) -> None:
        """Builds every stage of a process; a fault is told like the death of a worker, and not tried again."""
        key = (command.process, command.replica)
        plan = self._processes[command.process]
        if command.process in self._failed:
            self._down(command, self._failed[command.process])
            return
        try:
            for stage in plan.stages:
                self._board.set(key, note=f"loading {stage.model_stage}")
                self._hosts[stage.stage_id] = self._build_host(stage, {self._connector.name: self._connector})
                self._homes[stage.stage_id] = command
        except Exception as error:
            logger.log(
                logging.ERROR,
                "%s cannot be loaded",
                plan.title,
                exc_info=None if isinstance(error, OmniError) else error,
            )
            self._unload(command.process)
            self._failed[command.process] = f"{plan.title}: {ErrorInfo.of(error).message}"
            self._down(command, self._failed[command.process])
            return
        self._board.set(key, state="ready", note="", progress=1.0)
        capacity = {stage.stage_id: stage.max_num_seqs for stage in plan.stages}
        self._post(
            ReplicaUp(
                now=time.monotonic(),
                process=command.process,
                replica=command.replica,
                epoch=command.epoch,
                capacity=capacity,
            )
        )

    def _down(self, command: StartReplica, reason: str) -> None:
        self._board.set((command.process, command.replica), state="down", note=reason)
        self._post(
            ReplicaDown(
                now=time.monotonic(),
                process=command.process,
                replica=command.replica,
                epoch=command.epoch,
                reason=reason,
            )
        )

    def _unload(self, process: str) -> None:
        for stage in self._processes[process].stages:
            self._hosts.pop(stage.stage_id, None)

    def _feed(self, feed: Feed) -> None:
        payload, error = None, None
        try:
            payload = None if feed.ref is None else self._connector.get(feed.ref)
        except ConnectorError as raised:
            error = ErrorInfo.of(raised)
        self._arrivals.append(
            ItemArrived(
                request_id=feed.request_id,
                attempt=feed.attempt,
                source=feed.source,
                target=feed.target,
                seq=feed.seq,
                at_s=time.monotonic(),
            )
        )
        self._deliver(feed.target, self._fed(feed, payload, error))

    def _deliver(self, stage_id: int, mail: Any) -> None:
        """A stage that was unloaded hears nothing any more."""
        host = self._hosts.get(stage_id)
        if host is not None:
            host.handle(mail)
