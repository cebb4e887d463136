"""A step thread and its mailbox, without processes.

Faults pinned: mail posted before loading is lost; an idle loop spins; a stop waits for mail; a fault ends the thread in
silence; stages of one process load at the same time; a loop that sleeps keeps the memory of others.
"""

import mmap
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from omnistage.connectors.inproc import InprocConnector
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.spec import TensorSpec
from omnistage.stages.build import build_host
from omnistage.stages.host import Fed, StageHost
from omnistage.stages.loop import StageLoop
from omnistage.wire.messages import CLIENT, Cancel, CancelDone, Emitted, Feed, StageDone, Submit, WorkerEvent
from tests.fakes import SLEEP_S, echo_config, request_of
from tests.stages.fakes import quiet_door

DEADLINE_S = 5.0


class Owner:
    """Hears what a loop says, and can wait for it."""

    def __init__(self) -> None:
        self.events: list[WorkerEvent] = []
        self.progress: list[tuple[int, float, str]] = []
        self.loads: list[tuple[int, float]] = []
        self.load_errors: list[Exception] = []
        self.ends: list[BaseException | None] = []
        self._changed = threading.Condition()

    def loading(self, stage_id: int, fraction: float, note: str) -> None:
        self._say(lambda: self.progress.append((stage_id, fraction, note)))

    def loaded(self, stage_id: int, took_s: float) -> None:
        self._say(lambda: self.loads.append((stage_id, took_s)))

    def load_failed(self, stage_id: int, error: Exception) -> None:
        self._say(lambda: self.load_errors.append(error))

    def report(self, events: list[WorkerEvent]) -> None:
        self._say(lambda: self.events.extend(events))

    def ended(self, stage_id: int, error: BaseException | None) -> None:
        self._say(lambda: self.ends.append(error))

    def heard(self, kind: type) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: any(isinstance(event, kind) for event in self.events), DEADLINE_S)

    def has_ended(self) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: bool(self.ends), DEADLINE_S)

    def _say(self, change: Callable[[], object]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()


class CountingHost(StageHost):
    """Counts steps, and looks at the figures; `crash` makes the next step raise."""

    steps = 0
    looks = 0
    crash = False

    def step(self) -> list[WorkerEvent]:
        self.steps += 1
        if self.crash:
            raise SystemError("a fault of the host itself")
        return super().step()

    def measure(self) -> None:
        self.looks += 1
        super().measure()


class Running:
    """A loop over an echo stage."""

    def __init__(self) -> None:
        self.owner = Owner()
        built = build_host(echo_config(), {"shm": InprocConnector()})
        self.host = CountingHost(built.config, built._engine, {"shm": InprocConnector()})
        self.may_load = threading.Event()
        self.loop = StageLoop(0, self._build, self.owner, quiet_door())
        self.loop.start()

    def _build(self) -> StageHost:
        assert self.may_load.wait(DEADLINE_S)
        return self.host

    def submit(self, text: str) -> None:
        self.loop.post(
            Submit(
                process="main",
                replica=0,
                epoch=1,
                stage_id=0,
                request=request_of(text),
                attempt=1,
                order=(0, 0),
                active_targets=(CLIENT,),
            )
        )

    def cancel(self) -> None:
        self.loop.post(Cancel(process="main", replica=0, epoch=1, request_id="r", attempt=1, stage_id=0))


@pytest.fixture
def running() -> Iterator[Running]:
    stage = Running()
    try:
        yield stage
    finally:
        stage.may_load.set()
        stage.loop.stop()
        stage.loop.interrupt("r")
        assert stage.loop.join(DEADLINE_S)


def test_mail_posted_while_the_stage_loads_is_served_after(running: Running) -> None:
    """Fault: a request that came early is lost, or the loop speaks before it has loaded."""
    running.submit("a b")
    running.loop.interrupt("r")
    assert running.loop.gauges() == {}
    assert not running.owner.loads
    running.may_load.set()
    assert running.owner.heard(StageDone)
    assert [type(event) for event in running.owner.events] == [Emitted, Emitted, StageDone]
    assert running.owner.loads[0][0] == 0
    assert running.loop.first_step_done
    assert running.loop.gauges()["running"] == 0


def test_a_busy_stage_is_looked_at_now_and_then_and_an_idle_one_after_its_last_step(running: Running) -> None:
    """Fault: figures that are taken at every step, or that are of a request which has left."""
    running.may_load.set()
    running.submit(" ".join("a" * 200))
    assert running.owner.heard(StageDone)
    running.cancel()  # what is heard next was said after the figures had been taken
    assert running.owner.heard(CancelDone)
    assert running.loop.gauges()["held"] == 0
    assert running.loop.gauges()["steps_total"] >= 200
    assert running.host.looks < 100


def test_an_idle_loop_takes_no_steps(running: Running) -> None:
    """Fault: a loop that spins, or steps at every piece of news about nothing."""
    running.may_load.set()
    running.submit("a")
    assert running.owner.heard(StageDone)
    before = running.host.steps
    time.sleep(0.1)
    assert running.host.steps == before
    running.loop.room_freed()
    running.cancel()
    assert running.owner.heard(CancelDone)


def test_a_loop_that_sleeps_keeps_nothing_of_what_it_has_read(running: Running) -> None:
    """Fault: the last item before a rest keeps the segment or the arena that it lies in mapped until the next request comes."""
    running.may_load.set()
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    payload = MultimodalPayload({"tone": Tensor(TensorSpec("uint8", (mmap.PAGESIZE,)), memoryview(memory))})
    feed = Feed(
        process="main",
        replica=0,
        epoch=1,
        request_id="gone",
        attempt=1,
        source=1,
        target=0,
        seq=0,
        ref=None,
        last=False,
    )
    running.loop.post(Fed(feed, payload))
    mapping = weakref.ref(memory)
    del memory, payload
    ends_s = time.monotonic() + DEADLINE_S
    while mapping() is not None and time.monotonic() < ends_s:
        time.sleep(0.01)
    assert mapping() is None


def test_a_running_step_has_an_age_and_can_be_interrupted(running: Running) -> None:
    """Fault: a hung step looks idle; a cancel waits for its end."""
    running.may_load.set()
    running.submit("hang")
    ends_s = time.monotonic() + DEADLINE_S
    while running.loop.step_age_s() < 0.05 and time.monotonic() < ends_s:
        time.sleep(0.01)
    assert running.loop.step_age_s() >= 0.05
    running.cancel()
    running.loop.interrupt("r")
    assert running.owner.heard(CancelDone)
    time.sleep(0.05)
    assert running.loop.step_age_s() == 0.0


def test_a_stop_comes_after_the_current_step_and_before_waiting_mail(running: Running) -> None:
    """Fault: a shutdown that waits until all requests have ended, or ends a step in the middle."""
    running.may_load.set()
    running.submit("sleep " * 50)
    assert running.owner.heard(Emitted)
    running.loop.stop()
    assert running.loop.join(SLEEP_S * 4)
    assert running.owner.ends == [None]
    assert not any(isinstance(event, StageDone) for event in running.owner.events)


def test_a_fault_of_the_loop_itself_is_told() -> None:
    """Fault: a thread that ends in silence while its process looks alive."""
    stage = Running()
    stage.may_load.set()
    stage.host.crash = True
    stage.submit("a")
    assert stage.owner.has_ended()
    assert isinstance(stage.owner.ends[0], SystemError)
    assert stage.loop.join(DEADLINE_S)


def test_a_stage_that_cannot_be_loaded_says_why_and_ends() -> None:
    """Fault: a failed load is a dead thread without a word."""
    owner = Owner()

    def build() -> StageHost:
        raise FileNotFoundError("no weights")

    loop = StageLoop(3, build, owner, quiet_door())
    loop.start()
    assert loop.join(DEADLINE_S)
    assert [str(error) for error in owner.load_errors] == ["no weights"]
    assert owner.ends == [None]


def test_stages_of_one_process_load_one_after_the_other() -> None:
    """Fault: two threads import large libraries at once and lock each other up."""
    owner, lock = Owner(), threading.Lock()
    inside = 0
    most = 0

    def build() -> StageHost:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.05)
        inside -= 1
        return build_host(echo_config(), {"shm": InprocConnector()})

    door = quiet_door()
    loops = [StageLoop(stage_id, build, owner, door, build_lock=lock) for stage_id in range(2)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.stop()
        assert loop.join(DEADLINE_S)
    assert most == 1
    assert sorted(stage_id for stage_id, _ in owner.loads) == [0, 1]
