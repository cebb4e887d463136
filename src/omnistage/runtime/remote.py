"""The runtime whose driver is a process of its own (`engine_process: true`): the server's end of it.

Callers' threads write what they ask straight into the driver's socket; one thread here reads what it says, tells the callers,
and watches the process. If the driver dies, or its loop does not turn any more, every open request ends with one error, what it
had started is ended, and another driver begins with workers of its own: after a pause, and after too many deaths not any more
(the limits of a replica hold for the driver too). Decides nothing else. Times are seconds of time.monotonic.

What waits to be read is bounded by what is open: in either direction, for each request, its client window of media and the
tokens of its answer; new requests are refused while more than BACKLOG_NBYTES wait to be read by the driver.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import math
import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omnistage.core.errors import (
    EngineClosedError,
    ErrorInfo,
    InvalidRequestError,
    OmniError,
    QueueFullError,
    StageUnavailableError,
)
from omnistage.core.request import OmniRequest
from omnistage.obs.figures import FlowObserver
from omnistage.orchestrator.plan import OrchestratorConfig
from omnistage.runtime.base import ClientClosed, RuntimeStatus, Sink, Taken
from omnistage.runtime.callers import ControlDone
from omnistage.runtime.driver_process import (
    DRIVER_MODULE,
    DeathsState,
    DriverPlan,
    DriverState,
    WorkersState,
    launch_driver,
)
from omnistage.runtime.event_log import EventLog
from omnistage.runtime.inbox import Inbox
from omnistage.runtime.launch import KILL_WAIT_S, WORKER_MODULE
from omnistage.runtime.loop import STOP_GRACE_S
from omnistage.runtime.plan import ProcessPlan
from omnistage.runtime.remote_state import RemoteState
from omnistage.runtime.status import StatusBoardState
from omnistage.runtime.workers import last_words
from omnistage.wire.engine import Inspect, pack_for_driver, unpack_from_driver
from omnistage.wire.messages import AbortRequested, Arrived, ClientTook, ControlCalled, ShutdownRequested
from omnistage.wire.stream import Buffer

logger = logging.getLogger(__name__)

BACKLOG_NBYTES = 256 * 2**20
STOP_MARGIN_S = 2.0
"""On top of the time that a driver takes to stop what it has started."""
ORPHAN_GRACE_S = 2.0
"""Workers end by themselves when their driver does; after this they are killed."""
REST_S = 1.0
"""How long what a dead driver has said is read; it is there at once."""


class RemoteDriver:
    """Implements `runtime.base.Runtime`; `processes` as runtime.driver has them. Raises ConfigError where events cannot be
    recorded: the first driver writes to `record_events_path`, the second, after a death, to the same with ".2", and so on."""

    def __init__(
        self,
        config: OrchestratorConfig,
        processes: Sequence[ProcessPlan],
        *,
        record_events_path: Path | None = None,
        observer: FlowObserver | None = None,
        worker_module: str = WORKER_MODULE,
        zygote: bool = False,
        driver_module: str = DRIVER_MODULE,
    ) -> None:
        if record_events_path is not None:
            EventLog(record_events_path, config).close()
        self._plan = DriverPlan(
            config=config,
            processes=tuple(processes),
            record_events=None if record_events_path is None else str(record_events_path.absolute()),
            observed=observer is not None,
            worker_module=worker_module,
            zygote=zygote,
        )
        self._module = driver_module
        self._board = StatusBoardState(processes)
        self._open = RemoteState(self._board, observer)
        self._inbox = Inbox()
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="omnistage-remote", daemon=True)
        self._lock = (
            threading.Lock()
        )  # whoever adds to what is open holds it, so that nobody is added to a driver that is lost
        self._driver: DriverState | None = None
        self._call_ids = itertools.count()
        self._starts = 0
        self._deaths = DeathsState(config.limits)
        self._death = ""
        self._start_at = math.inf
        self._left = WorkersState()
        self._left_until = math.inf

    # ---- callers' side (any thread) ----

    def start(self) -> None:
        self._board.enter("open")
        atexit.register(self.close, 0.0)
        self._launch(time.monotonic())
        self._thread.start()

    def submit(self, request: OmniRequest, sink: Sink) -> None:
        error = self._submit(request, sink)
        if error is not None:
            sink(ClientClosed(request.request_id, "failed", ErrorInfo.of(error)))

    def _submit(self, request: OmniRequest, sink: Sink) -> OmniError | None:
        """Why it is refused, if it is."""
        request_id = request.request_id
        try:
            frames = pack_for_driver(Arrived(now=time.monotonic(), request=request))
        except (TypeError, ValueError, OverflowError) as fault:
            return InvalidRequestError(f"the request holds what is no plain data: {fault}")
        with self._lock:
            if request_id in self._open.sinks:
                return InvalidRequestError.of("request_id", request_id, "an id that no open request has")
            error = self._refusal()
            if error is None:
                self._open.sinks[request_id] = sink
                self._send(frames)
            return error

    def abort(self, request_id: str, reason: str) -> None:
        self._say_of([AbortRequested(now=time.monotonic(), request_id=request_id, reason=reason)])

    def took(self, taken: Sequence[Taken]) -> None:
        now = time.monotonic()
        self._say_of([one.event(now) for one in taken])

    def control(self, name: str, arguments: Mapping[str, Any], done: ControlDone) -> None:
        call_id = str(next(self._call_ids))
        call = ControlCalled(now=time.monotonic(), call_id=call_id, name=name, arguments=dict(arguments))
        frames = pack_for_driver(call)
        with self._lock:
            error = self._refusal()
            if error is None:
                self._open.controls[call_id] = done
                self._send(frames)
        if error is not None:
            done({}, ErrorInfo.of(error))

    def inspect(self, done: Callable[[dict[str, Any]], None]) -> None:
        call_id = str(next(self._call_ids))
        with self._lock:
            own = {"runtime": self._holdings()}
            asked = self._driver is not None
            if asked:
                self._open.inspections[call_id] = lambda held: done({**own, "driver": held})
                self._send(pack_for_driver(Inspect(call_id=call_id)))
        if not asked:
            done({} if self._board.over else {**own, "driver": None})

    def status(self) -> RuntimeStatus:
        return self._board.status(len(self._open.sinks))

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

    # ---- to the driver ----

    def _say_of(self, messages: Sequence[AbortRequested | ClientTook]) -> None:
        """What concerns open requests; of others the driver knows nothing."""
        with self._lock:
            told = [message for message in messages if message.request_id in self._open.sinks]
            if self._driver is not None and told:
                self._send(pack_for_driver(*told))

    def _send(self, frames: Sequence[Buffer]) -> None:
        """With the lock held, while there is a driver."""
        assert self._driver is not None
        waited = self._driver.stream.waiting_nbytes
        self._driver.stream.send(frames)
        if self._driver.stream.waiting_nbytes and not waited:
            self._inbox.put(self._watch_writing)

    def _refusal(self) -> OmniError | None:
        """Why nothing new can be asked now; with the lock held."""
        if self._board.phase == "new" or self._board.over:
            return self._closed()
        if self._driver is None:
            return StageUnavailableError(self._board.reason, retry_after_s=self._pause_s(time.monotonic()))
        if self._driver.stream.waiting_nbytes > BACKLOG_NBYTES:
            return QueueFullError("too much waits to be read by the driver", retry_after_s=1.0)
        return None

    def _closed(self) -> EngineClosedError:
        return EngineClosedError(self._board.reason or "the engine is closed")

    def _pause_s(self, now: float) -> float | None:
        """When to try again; None where nothing will be different."""
        return None if self._start_at == math.inf else max(1.0, self._start_at - now)

    def _holdings(self) -> dict[str, Any]:
        waiting = 0 if self._driver is None else self._driver.stream.waiting_nbytes
        return {**self._open.holdings(), "waiting_nbytes": waiting, "left_workers": len(self._left)}

    # ---- the runtime's thread ----

    def _run(self) -> None:
        try:
            self._selector.register(self._inbox.fileno(), selectors.EVENT_READ, self._take_calls)
            while self._board.phase != "draining" or self._driver is not None:
                self._wait()
                self._turn(time.monotonic())
        except Exception as error:
            logger.exception("the runtime has failed and stops")
            self._board.blame(f"the runtime has failed: {ErrorInfo.of(error).message}")
        finally:
            self._end()

    def _take_calls(self) -> None:
        for call in self._inbox.take():
            call()

    def _wait(self) -> None:
        ours = math.inf if self._driver is None else self._driver.deadline
        deadline = min(self._start_at, self._left_until, ours)
        timeout_s = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        for key, _mask in self._selector.select(timeout_s):
            if self._selector.get_map().get(key.fd) is key:  # an earlier callback of this round may have closed it
                key.data()

    def _turn(self, now: float) -> None:
        """Does what is due."""
        if now >= self._start_at:
            self._start_at = math.inf
            self._launch(now)
        if now >= self._left_until:
            self._end_left(now)
        if self._driver is not None and now >= self._driver.deadline:
            doubt = self._driver.judge(now)
            if doubt:
                self._board.blame(f"the driver process {doubt}")
                logger.warning("%s", self._board.reason)

    # ---- what the driver says ----

    def _listen(self) -> None:
        driver = self._driver
        if driver is None:
            return
        driver.stream.flush()
        self._read(driver)
        if driver.stream.ended:
            self._selector.unregister(driver.stream.fileno())
            driver.kill_by(time.monotonic() + STOP_MARGIN_S, "has closed its channel")
        else:
            self._watch_writing()

    def _read(self, driver: DriverState) -> None:
        transmissions = driver.stream.receive()
        for frames in transmissions:
            messages, tensors = unpack_from_driver(frames)
            for message in messages:
                self._open.hear(message, tensors)
        if transmissions:
            driver.speaks(time.monotonic())
            well = all(replica.state == "ready" for replica in self._board.replicas)
            if self._board.reason != (known := "" if well else self._death):
                self._board.blame(known)

    def _watch_writing(self) -> None:
        driver = self._driver
        if driver is None or driver.stream.ended:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if driver.stream.waiting_nbytes else 0)
        if self._selector.get_key(driver.stream.fileno()).events != events:
            self._selector.modify(driver.stream.fileno(), events, self._listen)

    # ---- life and death of drivers ----

    def _launch(self, now: float) -> None:
        self._starts += 1
        try:
            driver = launch_driver(self._plan.of_start(self._starts), now, module=self._module)
        except OSError as error:
            self._lost(f"cannot be started: {error}")
            return
        self._selector.register(driver.stream.fileno(), selectors.EVENT_READ, self._listen)
        self._selector.register(driver.pidfd, selectors.EVENT_READ, self._died)
        self._selector.register(driver.life_line, selectors.EVENT_READ, self._adopt)
        with self._lock:
            self._driver = driver

    def _adopt(self) -> None:
        """Workers that the driver has started."""
        if self._driver is not None and not self._driver.adopt():
            self._selector.unregister(self._driver.life_line)

    def _died(self) -> None:
        driver = self._driver
        if driver is None:
            return
        until = time.monotonic() + REST_S
        while not driver.stream.ended and time.monotonic() < until:
            self._read(driver)
        driver.adopt()
        code = driver.wait()
        fault, self._open.fault = self._open.fault, ""
        died = last_words(code, "") if code >= 0 else f"was {last_words(code, '')}"
        self._lost(f"has failed: {fault}" if fault else driver.why or died)

    def _lost(self, why: str) -> None:
        """What was open ends; another driver is started, unless this is the end or there were too many deaths."""
        now = time.monotonic()
        stopping = self._board.phase == "draining"
        pause_s = None if stopping else self._deaths.pause_s(now)
        self._death = f"the driver process {why}"
        if pause_s is None and not stopping:
            self._death += f"; after {self._deaths} it stays down"
        with self._lock:
            driver, self._driver = self._driver, None
            self._start_at = math.inf if pause_s is None else now + pause_s
            self._board.reason = "" if stopping else self._death
        if driver is not None:
            self._bury(driver, now)
        logger.log(logging.DEBUG if stopping else logging.WARNING, "%s", self._death)
        error = StageUnavailableError(self._death, retry_after_s=self._pause_s(now))
        self._open.lose(ErrorInfo.of(error), comes_back=pause_s is not None)

    def _bury(self, driver: DriverState, now: float) -> None:
        for end in (driver.stream, driver.pidfd, driver.life_line):
            if end in self._selector.get_map():
                self._selector.unregister(end)
        self._left.take_over(driver.workers)
        self._left_until = now + ORPHAN_GRACE_S
        driver.close()

    def _end_left(self, now: float) -> None:
        """Workers that have outlived their driver: one that is stopped, say, does not see its end."""
        self._left.forget_ended(0.0)
        self._left_until = now + ORPHAN_GRACE_S if len(self._left) else math.inf
        self._left.kill()

    # ---- the end ----

    def _begin_stop(self, drain_timeout_s: float) -> None:
        if self._board.over:
            return
        self._board.enter("draining")
        self._start_at = math.inf
        if self._driver is not None:
            now = time.monotonic()
            with self._lock:
                self._send(pack_for_driver(ShutdownRequested(now=now, drain_timeout_s=drain_timeout_s)))
            self._driver.kill_by(now + drain_timeout_s + STOP_GRACE_S + STOP_MARGIN_S, "did not stop when asked to")

    def _end(self) -> None:
        """Idempotent; no process is left when this returns."""
        if self._board.over:
            return
        self._board.enter("ending")
        with self._lock:
            driver, self._driver = self._driver, None
        self._open.lose(ErrorInfo.of(self._closed()), comes_back=False)
        if driver is not None:  # by a fault of this side
            driver.kill()
            driver.wait()
            driver.adopt()
            self._bury(driver, time.monotonic())
        self._left.kill()
        self._left.forget_ended(KILL_WAIT_S)
        self._left.close()
        for call in self._inbox.close():
            call()
        self._selector.close()
        self._board.end()
