"""The process of one replica: `python -m omnistage.stages.worker`, with its plan (wire.plan) on standard input.

    main thread: socket, life line, heartbeat; payloads are fetched here, cancels interrupt here     (class Worker)
    one thread per stage: loads the stage, then steps; an idle one takes the socket over             (stages.loop, stages.doorway)

The environment (threads, allocator) is set by whoever starts the process: libraries read it when they are loaded. Signals
of a terminal or a process group are ignored, because the server decides when a worker ends: by Shutdown (after the current
steps), by end-of-file on the life line (at once, also while a step hangs), or by a kill. A loop that dies of a fault of its
own ends the process; the supervisor starts it anew.
Knows nothing of what stages do, or of who else there is.
"""

from __future__ import annotations

import functools
import logging
import os
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from omnistage.config.env import log_level
from omnistage.config.stage import StageConfig
from omnistage.connectors.base import Connectors, OmniConnector
from omnistage.connectors.descriptors import receive_descriptor
from omnistage.connectors.inproc import InprocConnector
from omnistage.connectors.segments import memory_of
from omnistage.core.errors import ErrorInfo, OmniError
from omnistage.obs.log import configure_logging
from omnistage.obs.process import live_by_a_life_line
from omnistage.stages.build import build_host
from omnistage.stages.carriers import ArenaConnector, Fetching, shm_connector, tcp_fetching
from omnistage.stages.doorway import Doorway
from omnistage.stages.host import StageHost
from omnistage.stages.inspection import answer
from omnistage.stages.intake import IntakeState
from omnistage.stages.loop import StageLoop
from omnistage.stages.prepare.runner import PrepareRunner
from omnistage.stages.reports import reports
from omnistage.wire.channels import WorkerChannel
from omnistage.wire.messages import (
    Cancel,
    Control,
    Feed,
    Grant,
    ItemArrived,
    Release,
    Submit,
    WorkerEvent,
)
from omnistage.wire.plan import WorkerPlan
from omnistage.wire.worker import (
    FromWorker,
    Heartbeat,
    Hello,
    LoadFailed,
    LoadProgress,
    Ready,
    Shutdown,
    ToWorker,
)

log = logging.getLogger("omnistage.stages.worker")  # `__name__` is "__main__" in a process of its own

MOST_ARRIVALS = 4096
"""Times of arrival that are kept for the next report; older ones are forgotten, and with them a few measurements."""
EXIT_STOPPED, EXIT_FAILED, EXIT_ORPHANED = 0, 1, 2


class Channel(Protocol):
    """What of a WorkerChannel the worker uses."""

    def send(self, *messages: FromWorker) -> bool: ...

    def fileno(self) -> int: ...

    def receive(self) -> list[ToWorker]: ...


class Worker:
    """See the module. `connector` carries payloads to other processes, and the one that `fetching` makes to other hosts; inside
    this one they go over by reference. `run` is the main thread's loop and returns the exit code; the callbacks of LoopOwner
    come from the step threads."""

    def __init__(
        self,
        plan: WorkerPlan,
        channel: Channel,
        life_line: socket.socket,
        connector: ArenaConnector,
        *,
        fetching: Fetching | None = None,
        build: Callable[[StageConfig, Connectors], StageHost] = build_host,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._channel = channel
        self._life_line = life_line
        self._arena = connector
        inside = InprocConnector(plan.owner, plan.epoch)
        self._connectors: dict[str, OmniConnector] = {connector.name: connector, inside.name: inside}
        self._clock = clock
        self._lock = threading.Lock()
        self._hands = threading.RLock()  # held by whoever takes in what is heard here
        self._load_notes: dict[int, str] = {}
        self._told_ready = False
        self._ended = 0
        self._exit_code: int | None = None
        self._stopping = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._arrivals: deque[ItemArrived] = deque(maxlen=MOST_ARRIVALS)
        if fetching is not None:
            far = fetching(self._arrived)
            self._connectors[far.name] = far
        self._door = Doorway(channel.fileno(), self._read_channel)
        build_lock = threading.Lock()
        self._loops = {
            config.stage_id: StageLoop(
                config.stage_id,
                functools.partial(build, config, self._connectors),
                self,
                self._door,
                build_lock=build_lock,
                clock=clock,
            )
            for config in plan.stages
        }
        self._intake = IntakeState(self._connectors, self._loops, note=self._note_arrival, clock=clock)
        self._preparing = {
            config.stage_id: PrepareRunner(
                config,
                post=self._loops[config.stage_id].post,
                failed=functools.partial(self.load_failed, config.stage_id),
                readied=self._tell_ready,
                clock=clock,
            )
            for config in plan.stages
            if config.processor_workers
        }

    # ---- step threads (LoopOwner) ------------------------------------------------------------------------------------

    def loading(self, stage_id: int, fraction: float, note: str) -> None:
        self._send(LoadProgress(stage_id=stage_id, fraction=fraction, note=note))

    def loaded(self, stage_id: int, took_s: float) -> None:
        note = f"loaded in {took_s:.1f} s"
        self.loading(stage_id, 1.0, note)
        with self._lock:
            self._load_notes[stage_id] = note
        self._tell_ready()

    def _tell_ready(self) -> None:
        """Once, when all stages and all their helpers have loaded; from any thread."""
        with self._lock:
            complete = len(self._load_notes) == len(self._loops)
            complete = complete and all(preparing.ready for preparing in self._preparing.values())
            is_news = complete and not self._told_ready
            self._told_ready = complete
        if is_news:
            capacity = {config.stage_id: config.max_num_seqs for config in self._plan.stages}
            self._send(Ready(capacity=capacity, notes=dict(self._load_notes)))

    def load_failed(self, stage_id: int, error: Exception) -> None:
        name = self._name(stage_id)
        if not isinstance(error, OmniError):
            log.error("the stage cannot be loaded", exc_info=error, extra={"stage": name})
        self._send(LoadFailed(stage_id=stage_id, error=ErrorInfo.of(error, stage=name)))
        self._exit(EXIT_FAILED)

    def report(self, events: list[WorkerEvent]) -> None:
        with self._lock:
            arrivals = tuple(self._arrivals)
            self._arrivals.clear()
        self._send(*reports(events, self._clock(), arrivals))

    def ended(self, stage_id: int, error: BaseException | None) -> None:
        if error is not None:
            log.critical("the stage's loop died", exc_info=error, extra={"stage": self._name(stage_id)})
            self._exit(EXIT_FAILED)
        with self._lock:
            self._ended += 1
            self._wake_up()

    # ---- main thread -------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Until Shutdown, a fault, or the end of the server."""
        plan = self._plan
        self._send(Hello(process=plan.process, replica=plan.replica, epoch=plan.epoch, pid=os.getpid()))
        self._life_line.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._door, selectors.EVENT_READ, self._read_channel)
            selector.register(self._life_line, selectors.EVENT_READ, self._read_life_line)
            selector.register(self._wake, selectors.EVENT_READ, self._read_wake)
            for preparing in self._preparing.values():
                preparing.open(selector)  # beside the loading of the stages
            for stage_id, loop in self._loops.items():
                self.loading(stage_id, 0.0, "loading")
                loop.start()
            self._serve(selector)
            self._door.close()
            for preparing in self._preparing.values():
                preparing.close()
        with self._lock:
            os.close(self._wake)
            self._wake = -1
        assert self._exit_code is not None
        return self._exit_code

    def _serve(self, selector: selectors.BaseSelector) -> None:
        next_beat_s = self._clock()
        while self._exit_code is None:
            now_s = self._clock()
            with self._hands:
                if now_s >= next_beat_s:
                    self._beat(now_s)
                    next_beat_s = now_s + self._plan.heartbeat_s
                for preparing in self._preparing.values():
                    preparing.turn(now_s)
                due_s = min([next_beat_s, *(preparing.deadline for preparing in self._preparing.values())])
            ready = selector.select(max(0.0, due_s - self._clock()))
            with self._hands:
                for key, _ in ready:
                    key.data()

    def _beat(self, now_s: float) -> None:
        self._intake.fail_overdue(now_s)
        self._send(
            Heartbeat(
                step_age_s={stage_id: loop.step_age_s() for stage_id, loop in self._loops.items()},
                first_step_done={stage_id: loop.first_step_done for stage_id, loop in self._loops.items()},
                gauges={
                    stage_id: {**loop.gauges(), **self._helper_gauges(stage_id)}
                    for stage_id, loop in self._loops.items()
                },
                arena_used_nbytes=int(sum(held.health()["used_nbytes"] for held in self._outward)),
            )
        )

    def _helper_gauges(self, stage_id: int) -> dict[str, float]:
        preparing = self._preparing.get(stage_id)
        return {} if preparing is None else preparing.gauges()

    def _read_wake(self) -> None:
        os.eventfd_read(self._wake)
        self._intake.retry()
        with self._lock:
            all_ended = self._ended == len(self._loops)
        if all_ended and self._stopping:
            self._exit(EXIT_STOPPED)

    def _read_channel(self) -> None:
        """In the main thread, or in a step thread that has nothing else to do."""
        with self._hands:
            for message in self._channel.receive():
                self._dispatch(message)

    def _dispatch(self, message: ToWorker) -> None:
        match message:
            case Release():
                self._release(message)
            case Shutdown():
                self._stopping = True
                for loop in self._loops.values():
                    loop.stop()
            case _ if (message.process, message.replica, message.epoch) != self._identity:
                log.warning("a message for another incarnation was dropped: %s", type(message).__name__)
            case Feed():
                self._intake.feed(message)
            case Cancel():
                self._cancel(message)
            case Control(name="debug_state"):
                self._describe(message)
            case Submit():
                self._submit(message)
            case Control(stage_id=stage_id) | Grant(source=stage_id):
                self._loops[stage_id].post(message)

    @property
    def _outward(self) -> list[OmniConnector]:
        return [connector for connector in self._connectors.values() if not isinstance(connector, InprocConnector)]

    def _name(self, stage_id: int) -> str:
        return next(config.model_stage for config in self._plan.stages if config.stage_id == stage_id)

    @property
    def _identity(self) -> tuple[str, int, int]:
        return self._plan.process, self._plan.replica, self._plan.epoch

    def _release(self, message: Release) -> None:
        self._connectors[message.ref.connector].release(message.ref)
        for loop in self._loops.values():
            loop.room_freed()

    def _describe(self, message: Control) -> None:
        loop, preparing = self._loops[message.stage_id], self._preparing.get(message.stage_id)
        self.report([answer(message, loop, self._connectors, len(self._intake), preparing)])

    def _submit(self, message: Submit) -> None:
        """To the stage, or to those who prepare its inputs first."""
        preparing = self._preparing.get(message.stage_id)
        if preparing is None:
            self._loops[message.stage_id].post(message)
        else:
            preparing.submit(message)
            with self._lock:
                self._wake_up()  # the main thread, for what is due now

    def _cancel(self, message: Cancel) -> None:
        """The mail first, the interruption second: a step that ends early finds the cancel waiting."""
        self._intake.forget(message.request_id, message.attempt, message.stage_id)
        if message.stage_id in self._preparing:
            self._preparing[message.stage_id].cancel(message.request_id, message.attempt)
        loop = self._loops[message.stage_id]
        loop.post(message)
        loop.interrupt(message.request_id)

    def _read_life_line(self) -> None:
        try:
            received = receive_descriptor(self._life_line)
        except BlockingIOError:
            return
        except ConnectionError:
            received = None
        if received is None:
            self._exit(EXIT_ORPHANED)
            return
        header, descriptor = received
        owner, epoch, key = str(header["owner"]), int(header["epoch"]), header.get("key")
        if descriptor is None:
            self._arena.detach(owner, epoch, key)
            self._intake.fail(
                lambda _, feed: feed.ref is not None and memory_of(feed.ref) == (owner, epoch, key),
                f"{'the arena' if key is None else f'segment {key}'} of {owner} (epoch {epoch}) is gone",
            )
        else:
            self._arena.attach(owner, epoch, descriptor, key)
            os.close(descriptor)
            self._intake.retry()

    def _note_arrival(self, arrival: ItemArrived) -> None:
        with self._lock:
            self._arrivals.append(arrival)

    def _arrived(self) -> None:
        """From any thread: payloads that were being fetched have come, or will not."""
        with self._lock:
            self._wake_up()

    # ---- both --------------------------------------------------------------------------------------------------------

    def _send(self, *messages: FromWorker) -> None:
        if not self._channel.send(*messages):
            log.critical("the driver does not read any more")
            self._exit(EXIT_FAILED)

    def _exit(self, code: int) -> None:
        with self._lock:
            if self._exit_code is None:
                self._exit_code = code
            self._wake_up()

    def _wake_up(self) -> None:
        """With the lock held: a step thread may outlive the main loop."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)


def main() -> None:
    """The life of a worker process. It ends by `os._exit`: a hanging step or a library's atexit handler must not keep it."""
    live_by_a_life_line()
    configure_logging(log_level())
    plan = WorkerPlan.decode(sys.stdin.buffer.read())
    life_line = socket.socket(fileno=plan.life_line)
    os.set_inheritable(plan.life_line, False)
    channel = WorkerChannel(plan.address, plan.identity)
    code = EXIT_FAILED
    try:
        connector = shm_connector(plan, life_line)
        code = Worker(plan, channel, life_line, connector, fetching=tcp_fetching(plan)).run()
        if code != EXIT_ORPHANED:
            channel.close()
    except Exception:
        log.exception("the worker of %s ends by a fault of its own", plan.owner)
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
