"""The process of a driver (`engine_process: true`): `python -m omnistage.runtime.engine_process`, its plan on standard input.

The driver as it is, in the main thread, with one more descriptor to wait for: its callers are at the other end of a socket. It
hears what they ask (wire.engine), and says, when nothing is left to be done at once, what became of it, what has changed in its
replicas, and what was measured. A thread waits for the end of the server; then everything here ends, also where the driver hangs.
Signals of a terminal or a process group are ignored: the server decides when the driver ends. Imports no torch. Times in seconds.
"""

from __future__ import annotations

import logging
import math
import os
import select
import selectors
import socket
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from omnistage.connectors.descriptors import offer_descriptor
from omnistage.core.errors import ConfigError, ErrorInfo
from omnistage.core.payload import Tensor
from omnistage.obs.figures import StageFigures
from omnistage.obs.log import configure_logging
from omnistage.obs.process import give_large_memory_back, live_by_a_life_line, process_figures
from omnistage.obs.stderr import never_wait_for_stderr
from omnistage.orchestrator.machine import Orchestrator
from omnistage.runtime.base import ClientClosed, ClientItem, ClientRestarted, ReplicaStatus
from omnistage.runtime.driver import Driver
from omnistage.runtime.driver_process import DriverPlan
from omnistage.runtime.event_log import EventLog
from omnistage.runtime.status import Key
from omnistage.wire.engine import (
    Delivered,
    DriverBeat,
    DriverFailed,
    Ended,
    FromDriver,
    GaugesShown,
    Inspect,
    Inspected,
    ItemSent,
    ItemTaken,
    ReplicaShown,
    StageEnded,
    ToDriver,
    pack_from_driver,
    unpack_for_driver,
)
from omnistage.wire.messages import (
    AbortRequested,
    Arrived,
    ClientTook,
    ControlCalled,
    ControlReply,
    Restarted,
    ShutdownRequested,
)
from omnistage.wire.stream import Buffer, FrameStream

logger = logging.getLogger("omnistage.runtime.engine_process")  # `__name__` is "__main__" here

EXIT_STOPPED, EXIT_FAILED, EXIT_ORPHANED = 0, 1, 2
ORPHAN_GRACE_S = 6.0
"""How long the driver has to end its workers in order once the server is gone; they end by themselves too."""
TOGETHER_S = 0.001
"""What is said waits so long for more of the same time: each transmission wakes the server."""
LAST_WORDS_S = 2.0
"""How long the server has to read what was said last."""


class OutgoingState:
    """What will be said, in order, and since when it waits. Hears what flows, as an obs.figures.FlowObserver."""

    def __init__(self) -> None:
        self._messages: list[FromDriver] = []
        self._tensors: list[Buffer] = []
        self._since = math.inf

    def say(self, message: FromDriver) -> None:
        if not self._messages:
            self._since = time.monotonic()
        self._messages.append(message)

    def is_due(self, now: float) -> bool:
        return now >= self._since + TOGETHER_S

    def tell(self, message: ClientItem | ClientRestarted | ClientClosed) -> None:
        """The sink of every request."""
        match message:
            case ClientItem():
                self._deliver(message)
            case ClientRestarted():
                self.say(Restarted(request_id=message.request_id, attempt=message.attempt))
            case ClientClosed():
                self.say(_ended(message))

    def _deliver(self, item: ClientItem) -> None:
        tensors = item.payload.tensors
        self._tensors += [_bytes_of(tensor) for tensor in tensors.values()]
        self.say(
            Delivered(
                request_id=item.request_id,
                attempt=item.attempt,
                source=item.source,
                seq=item.seq,
                final_output_type=item.final_output_type,
                tensors={name: tensor.spec for name, tensor in tensors.items()},
                metadata=dict(item.payload.metadata),
                last=item.last,
            )
        )

    def stage_ended(self, figures: StageFigures) -> None:
        self.say(StageEnded(figures=figures))

    def item_sent(self, source: str, target: str, nbytes: int) -> None:
        self.say(ItemSent(source=source, target=target, nbytes=nbytes))

    def item_taken(self, source: str, target: str, transfer_s: float, queue_s: float) -> None:
        self.say(ItemTaken(source=source, target=target, transfer_s=transfer_s, queue_s=queue_s))

    def send(self, stream: FrameStream) -> None:
        if self._messages:
            stream.send(pack_from_driver(self._messages, self._tensors))
            self._messages, self._tensors = [], []


class EngineProcess(Driver):
    """`serve` is the process's life and returns its exit code."""

    def __init__(self, plan: DriverPlan, channel: socket.socket, life_line: socket.socket) -> None:
        self._outgoing = OutgoingState()
        super().__init__(
            Orchestrator(plan.config),
            plan.processes,
            record_events_path=_record_of(plan),
            observer=self._outgoing if plan.observed else None,
            worker_module=plan.worker_module,
            zygote=plan.zygote,
        )
        self._heartbeat_s = plan.heartbeat_s
        self._stream = FrameStream(channel)
        self._life_line = life_line
        self._next_beat_s = 0.0
        self._shown: dict[Key, ReplicaStatus] = {}
        self._shown_gauges: dict[Key, Any] = {}
        self._zygote: int | None = None

    def serve(self) -> int:
        self._board.enter("open")
        self._run()
        return EXIT_FAILED if self._fault else EXIT_STOPPED

    # ---- hooks of the loop ----

    def _open(self) -> None:
        super()._open()
        self._watch(self._stream.fileno(), self._hear)

    def _deadline(self) -> float:
        return min(super()._deadline(), self._next_beat_s)

    def _work_off(self) -> None:
        super()._work_off()
        now = time.monotonic()
        self._show(now)
        if self._outgoing.is_due(now) or not (self._agenda or self._outbox):
            self._outgoing.send(self._stream)
        if self._stream.ended:
            return
        writing = selectors.EVENT_WRITE if self._stream.waiting_nbytes else 0
        if self._selector.get_key(self._stream.fileno()).events != selectors.EVENT_READ | writing:
            self._selector.modify(self._stream.fileno(), selectors.EVENT_READ | writing, self._hear)

    def _fail_all(self, error: ErrorInfo) -> None:
        """Where the driver itself has failed, the server tells the callers: it starts another one."""
        if self._fault:
            self._sinks.clear()
            self._controls.clear()
        super()._fail_all(error)

    def _end(self) -> None:
        super()._end()
        if self._fault:
            self._outgoing.say(DriverFailed(reason=self._fault))
        self._outgoing.send(self._stream)
        until = time.monotonic() + LAST_WORDS_S
        while self._stream.waiting_nbytes and time.monotonic() < until:
            select.select([], [self._stream], [], max(0.0, until - time.monotonic()))
            self._stream.flush()

    # ---- what the server says ----

    def _hear(self) -> None:
        self._stream.flush()
        for frames in self._stream.receive():
            for message in unpack_for_driver(frames):
                self._take(message)
        if self._stream.ended:
            self._abandon()

    def _abandon(self) -> None:
        """The server is gone, and nobody is left to be told."""
        self._selector.unregister(self._stream.fileno())
        logger.warning("the server has gone; its driver and workers end")
        self._begin_stop(0.0)
        self._stop_at = time.monotonic()

    def _take(self, message: ToDriver) -> None:
        now = time.monotonic()
        match message:
            case Arrived():
                self._admit(message.request, self._outgoing.tell)
            case AbortRequested() | ClientTook():
                self._post(msgspec.structs.replace(message, now=now))
            case ControlCalled():
                self._call(message.name, message.arguments, partial(self._answer, message.call_id))
            case ShutdownRequested():
                self._begin_stop(message.drain_timeout_s)
            case Inspect():
                held = {"process": process_figures(), **self._inspected()}
                self._outgoing.say(Inspected(call_id=message.call_id, held=held))

    def _answer(self, call_id: str, results: dict[str, Any], error: ErrorInfo | None) -> None:
        self._outgoing.say(ControlReply(call_id=call_id, results=results, error=error))

    # ---- what the server is shown ----

    def _show(self, now: float) -> None:
        """What has changed. Figures and heartbeats are not piled up before a server that does not read."""
        for replica in self._board.replicas:
            key = replica.process, replica.replica
            before = self._shown.get(key)
            if before is not replica:
                self._shown[key] = replica
                pid = replica.pid
                if pid is not None and (before is None or before.pid != pid):
                    self._hand_over(pid, self._supervisor.pidfd_of(pid))
                self._outgoing.say(_as_shown(replica))
        zygote = self._supervisor.zygote.pid
        if zygote != self._zygote:
            self._zygote = zygote
            self._hand_over_child(zygote)
        if self._stream.waiting_nbytes:
            self._next_beat_s = now + self._heartbeat_s
            return
        for key, gauges in self._board.gauges_by_replica.items():
            if self._shown_gauges.get(key) != gauges:
                self._shown_gauges[key] = gauges
                by_stage = {stage: dict(figures) for stage, figures in gauges.items()}
                self._outgoing.say(GaugesShown(process=key[0], replica=key[1], by_stage=by_stage))
        if now >= self._next_beat_s - self._heartbeat_s / 2:  # a turn that is made anyway saves one, and the server's
            self._next_beat_s = now + self._heartbeat_s
            self._outgoing.say(DriverBeat())

    def _hand_over_child(self, pid: int | None) -> None:
        """Of a child of this process that is not reaped: its number is nobody else's."""
        if pid is not None:
            pidfd = os.pidfd_open(pid)
            self._hand_over(pid, pidfd)
            os.close(pidfd)

    def _hand_over(self, pid: int, pidfd: int | None) -> None:
        """The pidfd of what was started here, so that the server can end it after this process."""
        if pidfd is None:
            return
        try:
            if not offer_descriptor(self._life_line, {"pid": pid}, pidfd):
                logger.warning("the server does not take the pidfd of process %d", pid)
        except OSError:  # the server is gone, which the channel tells
            logger.debug("no server takes the pidfd of process %d", pid)


def _record_of(plan: DriverPlan) -> Path | None:
    """The first driver's file was made by the server. One that cannot be made later is no reason not to serve."""
    if plan.record_events is None:
        return None
    path = Path(plan.record_events)
    try:
        EventLog(path, plan.config).close()
    except ConfigError as error:
        logger.warning("events are not recorded: %s", error.message)
        return None
    return path


def _as_shown(replica: ReplicaStatus) -> ReplicaShown:
    return ReplicaShown(
        process=replica.process,
        replica=replica.replica,
        state=replica.state,
        note=replica.note,
        progress=replica.progress,
        pid=replica.pid,
        restarts=replica.restarts,
    )


def _ended(closed: ClientClosed) -> Ended:
    return Ended(
        request_id=closed.request_id,
        outcome=closed.outcome,
        error=closed.error,
        usage=dict(closed.usage),
        times=dict(closed.times),
        reasons=dict(closed.reasons),
        attempts=closed.attempts,
        edges=dict(closed.edges),
        waiting_s=dict(closed.waiting_s),
    )


def _bytes_of(tensor: object) -> Buffer:
    """A client's item holds host copies (runtime.loop.on_host)."""
    assert isinstance(tensor, Tensor) and tensor.buffer is not None
    return tensor.buffer


def _end_with(life_line: socket.socket) -> None:
    """Nothing comes on the life line but its end."""
    life_line.recv(1)
    time.sleep(ORPHAN_GRACE_S)
    os._exit(EXIT_ORPHANED)


def main() -> None:
    """Ends by `os._exit`: nothing that hangs must keep it."""
    live_by_a_life_line()
    plan = DriverPlan.decode(sys.stdin.buffer.read())
    let_stderr_go = never_wait_for_stderr()
    configure_logging(plan.log_level)
    give_large_memory_back()
    channel, life_line = (socket.socket(fileno=descriptor) for descriptor in (plan.channel, plan.life_line))
    for descriptor in (plan.channel, plan.life_line):
        os.set_inheritable(descriptor, False)
    threading.Thread(target=_end_with, args=(life_line,), name="omnistage-life-line", daemon=True).start()
    code = EXIT_FAILED
    try:
        code = EngineProcess(plan, channel, life_line).serve()
    except Exception:
        logger.exception("the driver process ends by a fault of its own")
    finally:
        let_stderr_go()
        os._exit(code)


if __name__ == "__main__":
    main()
