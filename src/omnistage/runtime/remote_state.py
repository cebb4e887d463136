"""What is open at a driver process, and what it says: to each caller, to the status board, to whoever measures.

Callers are added by their own threads, under the lock of `runtime.remote`; everything else happens in that runtime's thread.
Knows nothing of processes or sockets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from omnistage.core.errors import ErrorInfo
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.obs.figures import FlowObserver
from omnistage.runtime.base import ClientClosed, ClientItem, ClientRestarted, Sink
from omnistage.runtime.callers import ControlDone, answer, say
from omnistage.runtime.status import Key, StatusBoardState
from omnistage.wire.engine import (
    Delivered,
    DriverBeat,
    DriverFailed,
    Ended,
    FromDriver,
    GaugesShown,
    Inspected,
    ItemSent,
    ItemTaken,
    OfRequest,
    OfState,
    ReplicaShown,
    StageEnded,
)
from omnistage.wire.messages import ControlReply, Restarted
from omnistage.wire.stream import Buffer

InspectDone = Callable[[dict[str, Any] | None], None]


class RemoteState:
    """`sinks` by request id, `controls` and `inspections` by call id. `fault`: what a driver has said of its own end."""

    def __init__(self, board: StatusBoardState, observer: FlowObserver | None) -> None:
        self._board = board
        self._observer = observer
        self.sinks: dict[str, Sink] = {}
        self.controls: dict[str, ControlDone] = {}
        self.inspections: dict[str, InspectDone] = {}
        self.fault = ""
        self._earlier_restarts: Counter[Key] = Counter()

    def hear(self, message: FromDriver, tensors: Iterator[Buffer]) -> None:
        """`tensors` are those of the transmission that nobody has taken yet."""
        match message:
            case Delivered() | Restarted() | Ended():
                self._tell(message, tensors)
            case StageEnded() | ItemSent() | ItemTaken():
                self._observe(message)
            case ReplicaShown() | GaugesShown() | DriverBeat() | DriverFailed():
                self._show(message)
            case ControlReply():
                if (done := self.controls.pop(message.call_id, None)) is not None:
                    answer(done, message.results, message.error)
            case Inspected():
                if (inspected := self.inspections.pop(message.call_id, None)) is not None:
                    inspected(message.held)

    def _tell(self, message: OfRequest, tensors: Iterator[Buffer]) -> None:
        """Whoever hears of the end finds the request gone from the status."""
        told: ClientItem | ClientRestarted | ClientClosed
        match message:
            case Delivered():
                told = _item(message, tensors)
            case Restarted():
                told = ClientRestarted(message.request_id, message.attempt)
            case Ended():
                told = _closed(message)
        ends = isinstance(told, ClientClosed)
        sink = self.sinks.pop(message.request_id, None) if ends else self.sinks.get(message.request_id)
        if sink is not None:
            say(sink, told)

    def _observe(self, message: StageEnded | ItemSent | ItemTaken) -> None:
        if self._observer is None:
            return
        match message:
            case StageEnded():
                self._observer.stage_ended(message.figures)
            case ItemSent():
                self._observer.item_sent(message.source, message.target, message.nbytes)
            case ItemTaken():
                self._observer.item_taken(message.source, message.target, message.transfer_s, message.queue_s)

    def _show(self, message: OfState) -> None:
        match message:
            case ReplicaShown():
                self._show_replica(message)
            case GaugesShown():
                self._board.show_gauges((message.process, message.replica), message.by_stage)
            case DriverFailed():
                self.fault = message.reason
            case DriverBeat():
                return

    def _show_replica(self, message: ReplicaShown) -> None:
        """A replica that begins again with a new driver is restarted, whatever that driver knows."""
        key = (message.process, message.replica)
        earlier = self._earlier_restarts[key]
        self._board.set(
            key,
            state="restarting" if earlier and message.state == "starting" else message.state,
            note=message.note,
            progress=message.progress,
            pid=message.pid,
            restarts=earlier + message.restarts,
        )

    def lose(self, error: ErrorInfo, *, comes_back: bool) -> None:
        """Everything that was open ends with `error`, once; the replicas are gone with their driver."""
        for request_id, sink in list(self.sinks.items()):
            del self.sinks[request_id]
            say(sink, ClientClosed(request_id, "failed", error))
        controls, self.controls = self.controls, {}
        for done in controls.values():
            answer(done, {}, error)
        inspections, self.inspections = self.inspections, {}
        for inspected in inspections.values():
            inspected(None)
        for replica in self._board.replicas:
            key = (replica.process, replica.replica)
            self._earlier_restarts[key] = replica.restarts + 1
            state = "restarting" if comes_back else "down"
            self._board.set(key, state=state, note=error.message, pid=None, progress=0.0)
            self._board.show_gauges(key, {})

    def holdings(self) -> dict[str, int]:
        return {"sinks": len(self.sinks), "controls": len(self.controls), "inspections": len(self.inspections)}


def _item(message: Delivered, tensors: Iterator[Buffer]) -> ClientItem:
    held = {name: Tensor(spec, memoryview(next(tensors)).toreadonly()) for name, spec in message.tensors.items()}
    return ClientItem(
        message.request_id,
        message.source,
        message.seq,
        message.final_output_type,
        MultimodalPayload(held, message.metadata),
        message.last,
        message.attempt,
    )


def _closed(message: Ended) -> ClientClosed:
    return ClientClosed(
        message.request_id,
        message.outcome,
        message.error,
        usage=message.usage,
        times=message.times,
        reasons=message.reasons,
        attempts=message.attempts,
        edges=message.edges,
        waiting_s=message.waiting_s,
    )
