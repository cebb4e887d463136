"""A step thread and its mailbox: loads one stage, then hands over mail and steps while there is something to do.

`post`, `room_freed`, `interrupt`, `stop` and the figures may be used from any thread; mail may be posted before the stage
has loaded. An idle loop sleeps at the door where mail comes in and reads it itself, or, where another one of its process does
that, until something is posted. The mailbox is bounded by those who post: windows bound the
items of a request, and dispatch the requests of a stage. Times are seconds of `clock`.
Knows nothing of sockets; `report` gets what a step had to say, in the step thread.
"""

from __future__ import annotations

import contextlib
import enum
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from omnistage.modeling.progress import listening
from omnistage.stages.doorway import Doorway
from omnistage.stages.host import Mail, StageHost
from omnistage.wire.messages import WorkerEvent

IDLE_WAIT_S = 10.0
"""A sleeping loop looks up this often even if nobody calls it: a wait without a deadline could hide a lost call."""

MEASURE_S = 0.1
"""How old the figures of a busy stage may be."""


class _Word(enum.Enum):
    """What is posted beside mail."""

    ROOM_FREED = enum.auto()
    STOP = enum.auto()


class LoopOwner(Protocol):
    """Who hears of a loop, always in its step thread."""

    def loading(self, stage_id: int, fraction: float, note: str) -> None: ...

    def loaded(self, stage_id: int, took_s: float) -> None: ...

    def load_failed(self, stage_id: int, error: Exception) -> None:
        """The loop ends."""

    def report(self, events: list[WorkerEvent]) -> None: ...

    def ended(self, stage_id: int, error: BaseException | None) -> None:
        """The loop has ended: stopped (None), or by a fault of its own."""


class StageLoop:
    """See the module. `build` makes the host, in the step thread; `build_lock` is shared by loops of one process, whose
    stages load one after the other (imports of large libraries from several threads may lock each other up)."""

    def __init__(
        self,
        stage_id: int,
        build: Callable[[], StageHost],
        owner: LoopOwner,
        door: Doorway,
        *,
        build_lock: threading.Lock | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stage_id = stage_id
        self.first_step_done = False
        self._build = build
        self._owner = owner
        self._door = door
        self._build_lock = build_lock or threading.Lock()
        self._clock = clock
        self._host: StageHost | None = None
        self._posted: queue.SimpleQueue[Mail | _Word] = queue.SimpleQueue()
        self._stopping = False
        self._step_began_s: float | None = None
        self._turns_s = 0.0
        self._measured_s = 0.0
        self._thread = threading.Thread(target=self._main, name=f"stage-{stage_id}", daemon=True)

    # ---- any thread ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def post(self, mail: Mail) -> None:
        self._put(mail)

    def room_freed(self) -> None:
        """To be called after every release of a reference that this process owns."""
        self._put(_Word.ROOM_FREED)

    def interrupt(self, request_id: str) -> None:
        """Asks a running step to end early; to be called after the Cancel was posted."""
        host = self._host
        if host is not None:
            host.interrupt(request_id)

    def stop(self) -> None:
        """Ends the loop after its current step; mail that is waiting is not read."""
        self._stopping = True
        self._put(_Word.STOP)

    def _put(self, posted: Mail | _Word) -> None:
        self._posted.put(posted)
        self._door.ring(self)

    def join(self, timeout_s: float) -> bool:
        """True if the thread has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def step_age_s(self) -> float:
        """For how long the current step has been running; 0 between steps."""
        began_s = self._step_began_s
        return 0.0 if began_s is None else self._clock() - began_s

    def gauges(self) -> dict[str, float]:
        host = self._host
        return {} if host is None else {**host.gauges(), "turn_seconds_total": self._turns_s}

    def debug_state(self) -> dict[str, Any]:
        """What is held here, also while a step runs or hangs."""
        host = self._host
        inside = {} if host is None else {**host.debug_state(), **self.gauges()}
        return {"mail": self._posted.qsize(), "step_age_s": self.step_age_s(), **inside}

    # ---- step thread -----------------------------------------------------------------------------------------------

    def _main(self) -> None:
        error: BaseException | None = None
        try:
            host = self._load()
            if host is not None:
                self._run(host)
        except BaseException as raised:  # noqa: BLE001 - handed to the owner, who logs it and ends the process
            error = raised
        self._owner.ended(self.stage_id, error)

    def _load(self) -> StageHost | None:
        with self._build_lock:
            began_s = self._clock()
            try:
                with listening(lambda fraction, note: self._owner.loading(self.stage_id, fraction, note)):
                    self._host = self._build()
            except Exception as error:  # noqa: BLE001 - whatever a model's loader raises is why this stage cannot start
                self._owner.load_failed(self.stage_id, error)
                return None
        self._owner.loaded(self.stage_id, self._clock() - began_s)
        return self._host

    def _run(self, host: StageHost) -> None:
        while self._turn(host):
            pass

    def _turn(self, host: StageHost) -> bool:
        """Waits for something to do and does it; False when the loop is to end. What was read goes with the turn: a payload that
        stayed within reach of a loop that sleeps would keep the memory it lies in from everybody."""
        is_busy = host.has_work()
        self._measure(host, is_busy)
        mail = self._mail(is_busy)
        if mail is None:
            return False
        if not (mail or is_busy):
            return True  # it only looked up
        self._step_began_s = began_s = self._clock()
        for one in mail:
            if isinstance(one, _Word):
                host.room_freed()
            else:
                host.handle(one)
        events = host.step()
        self._step_began_s = None
        self.first_step_done = host.engine_stepped  # a turn that only read mail says nothing about the model
        if events:
            self._owner.report(events)
        self._turns_s += self._clock() - began_s
        return True

    def _measure(self, host: StageHost, is_busy: bool) -> None:
        """Nobody looks at the figures as often as a small model makes a step."""
        now_s = self._clock()
        if not is_busy or now_s >= self._measured_s + MEASURE_S:
            self._measured_s = now_s
            host.measure()

    def _mail(self, is_busy: bool) -> list[Mail | _Word] | None:
        """All that has been posted, None when the loop is to end. One that is not busy sleeps first."""
        mail: list[Mail | _Word] = []
        if not (is_busy or self._door.sleep(self, lambda: not self._posted.empty(), IDLE_WAIT_S)):
            with contextlib.suppress(queue.Empty):
                mail.append(self._posted.get(timeout=IDLE_WAIT_S))
        while not self._posted.empty():  # nobody else takes from it
            mail.append(self._posted.get_nowait())
        return None if self._stopping else mail
