"""The thread in which a machine lives, and the callers' side of it: what every runtime has in common.

It brings callers' words to the machine as events, carries out the commands that concern callers (Reply, Close, Restarted,
ControlReply) and leaves those that concern replicas to a subclass: these at once, those in slices (runtime.outbox), so that no
stage waits while a caller is told. One thread, one selector, no polling: it sleeps until a descriptor is readable or the next
deadline has come. Knows nothing of how replicas run. Times are seconds of time.monotonic.

Whatever fails in here is loud: it is logged, every open request ends with one error, and the runtime stops and says why
(`status().reason`). It is not begun again in place, because nobody knows what of its tables still holds: a server ends, and
whoever watches over it starts it anew; a driver process is started anew by its server.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import math
import selectors
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omnistage.core.errors import EngineClosedError, ErrorInfo, InvalidRequestError, OmniError, QueueFullError
from omnistage.core.payload import MultimodalPayload, PayloadRef
from omnistage.core.request import OmniRequest
from omnistage.obs.figures import FlowObserver
from omnistage.runtime.agenda import AgendaState
from omnistage.runtime.base import ClientClosed, ClientItem, ClientRestarted, Machine, RuntimeStatus, Sink, Taken
from omnistage.runtime.callers import ControlDone, answer, log_end, say
from omnistage.runtime.event_log import EventLog
from omnistage.runtime.inbox import Inbox
from omnistage.runtime.meter import MeterState
from omnistage.runtime.outbox import OutboxState, Told
from omnistage.runtime.plan import ProcessPlan
from omnistage.runtime.status import StatusBoardState
from omnistage.wire.messages import (
    AbortRequested,
    Arrived,
    Close,
    Command,
    ControlCalled,
    ControlReply,
    Event,
    Release,
    ReplicaDown,
    Reply,
    Restarted,
    ShutdownRequested,
    Tick,
    WakeAt,
)

logger = logging.getLogger(__name__)

STOP_GRACE_S = 5.0
"""How long replicas have to end by themselves after the drain, before they are killed."""


class RuntimeLoop(ABC):
    """Implements `runtime.base.Runtime` around a machine; a subclass adds the replicas."""

    def __init__(
        self,
        machine: Machine,
        processes: Sequence[ProcessPlan],
        *,
        record_events_path: Path | None = None,
        observer: FlowObserver | None = None,
    ) -> None:
        self._machine = machine
        self._board = StatusBoardState(processes)
        self._log = None if record_events_path is None else EventLog(record_events_path, machine.config)
        self._meter = MeterState(machine.config, observer)
        self._inbox = Inbox()
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="omnistage-runtime", daemon=True)
        self._agenda = AgendaState()
        self._outbox = OutboxState(self._carry_out_for_callers)
        self._sinks: dict[str, Sink] = {}
        self._given_up: set[str] = set()  # ended for their callers, but not yet by the machine's word
        self._controls: dict[str, ControlDone] = {}
        self._call_ids = itertools.count()
        self._wake_at = math.inf
        self._stop_at = math.inf
        self._fault = ""

    # ---- what a subclass adds (called in the runtime's thread) ----

    @abstractmethod
    def _open(self) -> None:
        """Before the machine starts."""

    @abstractmethod
    def _act(self, command: Command) -> None:
        """Carries out a command that concerns replicas."""

    @abstractmethod
    def _read(self, ref: PayloadRef) -> MultimodalPayload:
        """The payload of `ref`; its views may end when the loop goes on. Raises ConnectorError."""

    @abstractmethod
    def _turn(self, now: float) -> None:
        """Does what is due. Called once per wake-up."""

    @abstractmethod
    def _deadline(self) -> float:
        """When `_turn` wants to be called at the latest; math.inf for never, 0 for at once."""

    @abstractmethod
    def _running(self) -> bool:
        """True while a replica still runs."""

    @abstractmethod
    def _shut(self) -> None:
        """Ends every replica that still runs, now, and frees everything."""

    # ---- callers' side (any thread) ----

    def start(self) -> None:
        self._board.enter("open")
        atexit.register(self.close, 0.0)
        self._thread.start()

    def submit(self, request: OmniRequest, sink: Sink) -> None:
        if self._inbox.put(lambda: self._admit(request, sink), refusable=True):
            return
        error: OmniError = QueueFullError("too many requests wait", retry_after_s=1.0)
        if self._inbox.closed:
            error = self._closed()
        sink(ClientClosed(request.request_id, "failed", ErrorInfo.of(error)))

    def abort(self, request_id: str, reason: str) -> None:
        self._inbox.put(lambda: self._post(AbortRequested(now=time.monotonic(), request_id=request_id, reason=reason)))

    def took(self, taken: Sequence[Taken]) -> None:
        self._inbox.put(lambda: self._note_taken(taken))

    def _note_taken(self, taken: Sequence[Taken]) -> None:
        for one in taken:
            self._post(one.event(time.monotonic()))

    def control(self, name: str, arguments: Mapping[str, Any], done: ControlDone) -> None:
        if not self._inbox.put(lambda: self._call(name, dict(arguments), done), refusable=True):
            done({}, ErrorInfo.of(self._closed()))

    def inspect(self, done: Callable[[dict[str, Any]], None]) -> None:
        if not self._inbox.put(lambda: done(self._inspected()), refusable=True):
            done({})

    def status(self) -> RuntimeStatus:
        return self._board.status(len(self._sinks))

    def wait_ready(self, timeout_s: float) -> RuntimeStatus:
        self._board.wait_settled(timeout_s)
        return self.status()

    def wait_stopped(self, timeout_s: float) -> RuntimeStatus:
        self._board.wait_stopped(timeout_s)
        return self.status()

    def close(self, drain_timeout_s: float) -> None:
        atexit.unregister(self.close)
        if not self._thread.ident:
            self._end()
            return
        self._inbox.put(lambda: self._begin_stop(drain_timeout_s))
        if self._thread is not threading.current_thread():
            self._thread.join(drain_timeout_s + 2 * STOP_GRACE_S)

    def _closed(self) -> EngineClosedError:
        return EngineClosedError(self._board.reason or "the engine is closed")

    # ---- the runtime's thread ----

    def _inspected(self) -> dict[str, Any]:
        own = {
            "sinks": len(self._sinks),
            "controls": len(self._controls),
            "metered": len(self._meter),
            "outbox": len(self._outbox),
        }
        return {"machine": self._machine.snapshot(), "runtime": {**own, **self._holdings()}}

    def _holdings(self) -> dict[str, Any]:
        """What a subclass holds, for debugging."""
        return {}

    def _run(self) -> None:
        try:
            self._watch(self._inbox.fileno(), self._take_calls)
            self._open()
            now = time.monotonic()
            self._carry_out(now, None, self._machine.start(now))
            self._work_off()
            while not self._finished():
                self._wait()
                self._work_off()
        except Exception as error:
            logger.exception("the runtime has failed and stops")
            self._fault = ErrorInfo.of(error).message
            self._board.blame(f"the runtime has failed: {self._fault}")
            self._fail_all(ErrorInfo(OmniError.code, self._board.reason))
        finally:
            self._end()

    def _finished(self) -> bool:
        if self._board.phase != "draining":
            return False
        open_still = self._running() or self._sinks or self._outbox or self._agenda
        return time.monotonic() >= self._stop_at or not open_still

    def _wait(self) -> None:
        deadline = min(self._wake_at, self._stop_at, self._deadline())
        if self._outbox or self._agenda:
            deadline = 0.0
        timeout_s = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        for key, _mask in self._selector.select(timeout_s):
            # An earlier callback of this round may have closed this one's descriptor.
            if self._selector.get_map().get(key.fd) is key:
                key.data()

    def _work_off(self) -> None:
        """A round of what the machine is to hear, then a slice of what callers are to be told: whatever is left or comes of it
        waits until the descriptors have been looked at again."""
        now = time.monotonic()
        if now >= self._wake_at:
            self._wake_at = math.inf
            self._post(Tick(now=now))
        for event in self._agenda.round():
            self._carry_out(now, event, self._machine.handle(event))
            if isinstance(event, ReplicaDown):
                self._show_fate(event)
        self._turn(now)
        self._outbox.tell_some()

    def _show_fate(self, event: ReplicaDown) -> None:
        """A replica that will not be started again is down for good, and those who wait for it should know."""
        known = self._machine.snapshot()["replicas"][f"{event.process}/{event.replica}"]
        if known["state"] == "down":
            self._board.set((event.process, event.replica), state="down")

    def _watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """`callback` is called whenever `descriptor` is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def _post(self, event: Event) -> None:
        self._agenda.put(event)

    def _carry_out(self, now: float, event: Event | None, commands: list[Command]) -> None:
        if self._log is not None:
            self._log.record(now, event, commands)
        self._act_on(commands)
        self._meter.saw(now, event, commands)  # before any caller is told what was measured, but no stage waits for it

    def _act_on(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Reply() | Close() | Restarted() | ControlReply():
                    self._outbox.put(command)
                case Release() if self._outbox.will_read(command.ref):
                    self._outbox.put(command)
                case WakeAt():
                    self._wake_at = command.time
                case _:
                    self._act(command)

    def _carry_out_for_callers(self, command: Told) -> None:
        match command:
            case Reply():
                self._reply(command)
            case Close():
                self._close_request(command)
            case Restarted():
                self._tell(command.request_id, ClientRestarted(command.request_id, command.attempt))
            case ControlReply():
                answer(self._controls.pop(command.call_id), command.results, command.error)
            case Release():
                self._act(command)

    def _take_calls(self) -> None:
        for call in self._inbox.take():
            call()

    def _admit(self, request: OmniRequest, sink: Sink) -> None:
        request_id = request.request_id
        if self._board.over:
            say(sink, ClientClosed(request_id, "failed", ErrorInfo.of(self._closed())))
        elif request_id in self._sinks or request_id in self._given_up:
            error = InvalidRequestError.of("request_id", request_id, "an id that no open request has")
            say(sink, ClientClosed(request_id, "failed", ErrorInfo.of(error)))
        else:
            self._sinks[request_id] = sink
            self._post(Arrived(now=time.monotonic(), request=request))

    def _call(self, name: str, arguments: dict[str, Any], done: ControlDone) -> None:
        call_id = str(next(self._call_ids))
        self._controls[call_id] = done
        self._post(ControlCalled(now=time.monotonic(), call_id=call_id, name=name, arguments=arguments))

    # ---- to the callers ----

    def _reply(self, command: Reply) -> None:
        if command.request_id not in self._sinks:
            return
        try:
            payload = MultimodalPayload() if command.ref is None else self._read(command.ref).copied()
        except OmniError as error:
            self._give_up(command.request_id, ErrorInfo.of(error))
            return
        item = ClientItem(
            command.request_id,
            command.source,
            command.seq,
            command.final_output_type,
            payload,
            command.last,
            command.attempt,
        )
        self._tell(command.request_id, item)

    def _close_request(self, command: Close) -> None:
        log_end(command)
        self._given_up.discard(command.request_id)
        flow = self._meter.close(command.request_id)
        closed = ClientClosed(
            command.request_id,
            command.outcome,
            command.error,
            usage=command.usage,
            times=command.times,
            reasons=command.reasons,
            attempts=command.attempts,
            edges=flow.edges,
            waiting_s=flow.waiting_s,
        )
        self._tell_last(closed)

    def _give_up(self, request_id: str, error: ErrorInfo) -> None:
        """The caller gets its terminal state from here; the machine is told to clean up."""
        self._tell_last(ClientClosed(request_id, "failed", error))
        self._abort_given_up(request_id, error.message)

    def _tell(self, request_id: str, message: ClientItem | ClientRestarted) -> None:
        sink = self._sinks.get(request_id)
        if sink is not None and not say(sink, message):
            del self._sinks[request_id]
            self._abort_given_up(request_id, "its sink has failed")

    def _abort_given_up(self, request_id: str, reason: str) -> None:
        """Its id is free again once the machine has closed it: else the next request of that id would be told of this one's end."""
        self._given_up.add(request_id)
        self._post(AbortRequested(now=time.monotonic(), request_id=request_id, reason=reason))

    def _tell_last(self, closed: ClientClosed) -> None:
        """Whoever hears of the end finds the request gone from the status."""
        sink = self._sinks.pop(closed.request_id, None)
        if sink is not None:
            say(sink, closed)

    def _fail_all(self, error: ErrorInfo) -> None:
        for request_id in list(self._sinks):
            self._tell_last(ClientClosed(request_id, "failed", error))
        for done in self._controls.values():
            answer(done, {}, error)
        self._controls.clear()

    # ---- the end ----

    def _begin_stop(self, drain_timeout_s: float) -> None:
        if self._board.over:
            return
        if self._board.phase == "draining":
            self._stop_at = min(self._stop_at, time.monotonic() + drain_timeout_s + STOP_GRACE_S)
            return
        now = time.monotonic()
        self._board.enter("draining")
        self._stop_at = now + drain_timeout_s + STOP_GRACE_S
        self._post(ShutdownRequested(now=now, drain_timeout_s=drain_timeout_s))

    def _end(self) -> None:
        """Idempotent; the last thing that happens."""
        if self._board.over:
            return
        self._board.enter("ending")
        try:
            self._shut()
        finally:  # whatever could not be ended, nobody is left waiting for it
            for call in self._inbox.close():
                call()
            self._fail_all(ErrorInfo.of(self._closed()))
            self._selector.close()
            if self._log is not None:
                self._log.close()
            self._board.end()
