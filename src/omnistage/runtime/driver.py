"""The runtime whose stages run in worker processes: the machine's thread, joined to a supervisor and a channel.

It turns what workers say into events and the machine's commands into messages. Decides nothing: routes, credit, retries and
restarts are the machine's, processes the supervisor's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omnistage.core.payload import MultimodalPayload, PayloadRef
from omnistage.obs.figures import FlowObserver
from omnistage.runtime.base import Machine
from omnistage.runtime.launch import WORKER_MODULE
from omnistage.runtime.loop import RuntimeLoop
from omnistage.runtime.plan import ProcessPlan
from omnistage.runtime.supervisor import StageRuntime
from omnistage.wire.channels import DriverChannel
from omnistage.wire.messages import (
    Cancel,
    Command,
    Control,
    Emitted,
    Feed,
    Grant,
    Release,
    Reported,
    StartReplica,
    StopReplica,
    Submit,
)
from omnistage.wire.worker import FromWorker, StepReport


class Driver(RuntimeLoop):
    """`processes` as `runtime.plan.plan_processes` groups the stages that `machine` was configured with. With `zygote` a process
    is kept that restarts of workers fork from (runtime.zygote)."""

    def __init__(
        self,
        machine: Machine,
        processes: Sequence[ProcessPlan],
        *,
        record_events_path: Path | None = None,
        observer: FlowObserver | None = None,
        worker_module: str = WORKER_MODULE,
        zygote: bool = False,
    ) -> None:
        super().__init__(machine, processes, record_events_path=record_events_path, observer=observer)
        self._channel = DriverChannel()
        self._supervisor = StageRuntime(
            processes,
            self._selector,
            self._channel,
            post=self._post,
            drain=self._drain,
            board=self._board,
            worker_module=worker_module,
            zygote=zygote,
        )

    # ---- hooks of the loop ----

    def _open(self) -> None:
        self._supervisor.open()
        self._watch(self._channel.fileno(), self._listen)

    def _act(self, command: Command) -> None:
        match command:
            case StartReplica():
                self._supervisor.start(command.process, command.replica, command.epoch)
            case StopReplica():
                self._supervisor.stop(command.process, command.replica, command.epoch, kill=command.kill)
            case Release():
                self._supervisor.release(command.ref, command)
            case Submit() | Feed() | Grant() | Cancel() | Control():
                self._supervisor.send(command.process, command.replica, command.epoch, command)
            case _:
                raise AssertionError(f"{type(command).__name__} is not for replicas")

    def _read(self, ref: PayloadRef) -> MultimodalPayload:
        return self._supervisor.arenas.read(ref)

    def _holdings(self) -> dict[str, Any]:
        return {**self._supervisor.arenas.holdings(), "zygote": {"pid": self._supervisor.zygote.pid}}

    def _turn(self, now: float) -> None:
        self._supervisor.turn(now)

    def _deadline(self) -> float:
        return self._supervisor.deadline

    def _running(self) -> bool:
        return self._supervisor.running

    def _shut(self) -> None:
        self._supervisor.close()
        self._channel.close()

    # ---- what workers say ----

    def _listen(self) -> None:
        """One batch: the channel stays readable if there is more, and callers are not kept waiting by workers that say much."""
        self._take_batch()

    def _drain(self) -> None:
        """All that has come: the last words of the dead go before the news of their death."""
        while self._take_batch():
            pass

    def _take_batch(self) -> int:
        batch = self._channel.receive()
        for identity, message in batch:
            self._heard(identity, message)
        return len(batch)

    def _heard(self, identity: str, message: FromWorker) -> None:
        incarnation = self._supervisor.incarnation(identity)
        if incarnation is None:
            return
        if not isinstance(message, StepReport):
            self._supervisor.heard(*incarnation, message)
            return
        self._supervisor.reported(
            item.ref for item in message.items if isinstance(item, Emitted) and item.ref is not None
        )
        process, replica, epoch = incarnation
        self._post(
            Reported(
                now=time.monotonic(),
                process=process,
                replica=replica,
                epoch=epoch,
                items=message.items,
                at_s=message.at_s,
                arrivals=message.arrivals,
            )
        )
