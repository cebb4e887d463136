"""The worker's main loop over fakes: a channel of lists, a life line of a socket pair, one real step thread per stage.

Faults pinned: items overtake one another while an arena's descriptor is on its way; an item that can never be read leaves
its request waiting; a release does not wake who waits for room; messages for another incarnation are obeyed; a worker that
can no longer speak, or whose loop has died, stays alive.
"""

import io
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from omnistage.config.stage import OutputEdge, StageConfig
from omnistage.connectors.base import Connectors
from omnistage.connectors.descriptors import open_lifeline, send_descriptor
from omnistage.core.errors import ConfigError, ConnectorError
from omnistage.core.payload import MultimodalPayload, PayloadRef
from omnistage.stages import intake
from omnistage.stages import worker as worker_module
from omnistage.stages.build import build_host
from omnistage.stages.host import StageHost
from omnistage.stages.worker import EXIT_FAILED, EXIT_ORPHANED, EXIT_STOPPED, Worker
from omnistage.wire.messages import (
    CLIENT,
    Cancel,
    CancelDone,
    Consumed,
    Control,
    ControlDone,
    Emitted,
    Feed,
    Grant,
    ItemArrived,
    Release,
    StageDone,
    StageFailed,
    Submit,
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
    StepReport,
    ToWorker,
)
from tests.fakes import echo_config, request_of, sound_config
from tests.stages.fakes import TightConnector, text

DEADLINE_S = 5.0
WHERE: dict[str, Any] = {"process": "main", "replica": 0, "epoch": 1}


class FakeChannel:
    """What the driver says waits in a list; an eventfd makes it readable. `deaf` refuses what the worker sends."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.reports: list[StepReport] = []
        self.deaf = False
        self._waiting: list[ToWorker] = []
        self._event = os.eventfd(0, os.EFD_NONBLOCK)
        self._changed = threading.Condition()

    def fileno(self) -> int:
        return self._event

    def send(self, *messages: FromWorker) -> bool:
        with self._changed:
            for message in messages:
                self.said.extend(message.items if isinstance(message, StepReport) else [message])
                self.reports.extend([message] if isinstance(message, StepReport) else [])
            self._changed.notify_all()
            return not self.deaf

    def receive(self) -> list[ToWorker]:
        with suppress(BlockingIOError):  # another thread was there first
            os.eventfd_read(self._event)
        with self._changed:
            waiting, self._waiting = self._waiting, []
            return waiting

    def say(self, *messages: ToWorker) -> None:
        with self._changed:
            self._waiting.extend(messages)
        os.eventfd_write(self._event, 1)

    def wait_for(self, found: Callable[[], bool]) -> bool:
        with self._changed:
            return self._changed.wait_for(found, DEADLINE_S)

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.said if isinstance(message, kind)]

    def heard(self, kind: type, count: int = 1) -> bool:
        return self.wait_for(lambda: len(self.of(kind)) >= count)


class Process:
    """A worker in a thread; stage 0 writes, stage 1 speaks."""

    def __init__(
        self,
        *stages: StageConfig,
        connector: TightConnector | None = None,
        fetching: Any = None,
        build: Any = build_host,
    ) -> None:
        self.channel, self.connector = FakeChannel(), connector or TightConnector()
        self.server, theirs = open_lifeline()
        plan = WorkerPlan(
            **WHERE,
            stages=stages or (echo_config(), sound_config()),
            address="nowhere",
            identity="main/0/1/x",
            life_line=theirs.fileno(),
            heartbeat_s=0.02,
        )
        self.worker = Worker(plan, self.channel, theirs, self.connector, fetching=fetching, build=build)
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run, args=(theirs,), daemon=True)
        self._thread.start()

    def _run(self, life_line: socket.socket) -> None:
        with life_line:
            self.code = self.worker.run()

    def ends(self) -> int | None:
        self._thread.join(DEADLINE_S)
        return self.code

    def ref(self, words: str, owner: str = "main/0") -> PayloadRef:
        ref = self.connector.try_put(text(words))
        assert ref is not None
        return PayloadRef(ref.connector, owner, 1, ref.key)

    def speaker(self, request_id: str = "r") -> None:
        self.channel.say(submit(request_id, stage_id=1))


@pytest.fixture
def process() -> Iterator[Process]:
    running = Process()
    assert running.channel.heard(Ready)
    try:
        yield running
    finally:
        running.server.close()
        assert running.ends() is not None


def submit(request_id: str = "r", *, stage_id: int = 0, words: str = "a b", **changes: Any) -> Submit:
    return Submit(
        **(WHERE | changes),
        stage_id=stage_id,
        request=request_of(words, request_id),
        attempt=1,
        order=(0, 0),
        active_targets=(CLIENT,),
    )


def feed(seq: int, ref: PayloadRef | None, *, last: bool = False, attempt: int = 1) -> Feed:
    return Feed(**WHERE, request_id="r", attempt=attempt, source=0, target=1, seq=seq, ref=ref, last=last)


def test_a_worker_says_hello_loads_and_is_ready(process: Process) -> None:
    """Fault: the server learns of a start, its progress or its end too late, or of a capacity that is not there."""
    said = process.channel.said
    assert said[0] == Hello(process="main", replica=0, epoch=1, pid=os.getpid())
    progress = [(message.stage_id, message.fraction) for message in said if isinstance(message, LoadProgress)]
    assert sorted(progress) == [(0, 0.0), (0, 1.0), (1, 0.0), (1, 1.0)]
    [ready] = process.channel.of(Ready)
    assert ready.capacity == {0: 8, 1: 8}
    assert ready.notes.keys() == {0, 1}


def test_each_message_reaches_its_stage(process: Process) -> None:
    """Fault: mail for one stage of a shared process goes to the other."""
    process.channel.say(submit("writing"), submit("r", stage_id=1), feed(0, process.ref("x y"), last=True))
    assert process.channel.heard(StageDone, 2)
    assert {(done.request_id, done.stage_id) for done in process.channel.of(StageDone)} == {("writing", 0), ("r", 1)}
    process.channel.say(Control(**WHERE, call_id="c", stage_id=1, name="sleep"))
    assert process.channel.heard(ControlDone)
    assert process.channel.of(ControlDone)[0].stage_id == 1
    process.channel.say(Cancel(**WHERE, request_id="r", attempt=1, stage_id=1))
    assert process.channel.heard(CancelDone)


def test_heartbeats_carry_figures(process: Process) -> None:
    """Fault: a stage that works looks like one that never took a step."""
    process.channel.say(submit())
    assert process.channel.heard(StageDone)
    # A quick answer is there before the first beat.
    assert process.channel.wait_for(
        lambda: any(beat.first_step_done == {0: True, 1: False} for beat in process.channel.of(Heartbeat))
    )
    beat = process.channel.of(Heartbeat)[-1]
    assert beat.gauges[0]["running"] == 0
    assert beat.arena_used_nbytes == len(process.connector.payloads)


def test_reports_tell_when_they_were_made_and_when_items_came(process: Process) -> None:
    """Fault: how long items travel and wait cannot be told, or an item seems to be used before it came."""
    began_s = time.monotonic()
    process.channel.say(submit("r", stage_id=1), feed(0, process.ref("x")), feed(1, process.ref("y"), last=True))
    assert process.channel.heard(StageDone)
    arrivals: list[ItemArrived] = []
    for report in process.channel.reports:
        arrivals.extend(report.arrivals)
        assert began_s <= report.at_s <= time.monotonic()
        assert all(arrival.at_s <= report.at_s for arrival in report.arrivals)
        taken = [item.seq for item in report.items if isinstance(item, Consumed)]
        assert set(taken) <= {arrival.seq for arrival in arrivals}
    assert [(arrival.source, arrival.target, arrival.seq) for arrival in arrivals] == [(0, 1, 0), (0, 1, 1)]


def test_items_wait_in_order_for_the_descriptor_of_their_arena(process: Process) -> None:
    """Fault: an item that travels inline overtakes one whose arena has not arrived, and the request fails of a gap."""
    process.connector.out_of_reach.add("far/0")
    process.speaker()
    process.channel.say(feed(0, process.ref("a", "far/0")), feed(1, process.ref("b")), feed(2, None, last=True))
    time.sleep(0.1)
    assert process.channel.of(Consumed) == []
    reader, writer = os.pipe()
    send_descriptor(process.server, {"owner": "far/0", "epoch": 1}, reader)
    assert process.channel.heard(StageDone)
    assert process.connector.descriptors.keys() == {("far/0", 1)}
    assert process.channel.of(StageFailed) == []
    os.close(reader)
    os.close(writer)


def test_an_item_whose_bytes_have_come_goes_on() -> None:
    """Fault: an item that is fetched from another host stays parked; or the next one is fetched only after it."""
    asked: list[int] = []

    class Far(TightConnector):
        name = "tcp"

        def can_read(self, ref: PayloadRef) -> bool:
            asked.append(ref.key)
            return super().can_read(ref)

    far, told = Far(), []

    def fetching(arrived: Callable[[], None]) -> Far:
        told.append(arrived)
        return far

    process = Process(fetching=fetching)
    assert process.channel.heard(Ready)
    process.speaker()
    far.out_of_reach.add("main/0")
    refs = [far.try_put(text(words)) for words in ("a", "b")]
    process.channel.say(feed(0, refs[0]), feed(1, refs[1]), feed(2, None, last=True))
    time.sleep(0.1)
    assert process.channel.of(Consumed) == [] and asked == [0, 1]
    far.out_of_reach.clear()
    told[0]()
    assert process.channel.heard(StageDone)
    assert process.channel.of(StageFailed) == []
    process.server.close()
    process.ends()


def test_an_arena_that_is_gone_fails_the_requests_that_wait_for_it(process: Process) -> None:
    """Fault: a dead source's items leave their request waiting until its deadline."""
    process.connector.out_of_reach.add("far/0")
    process.speaker()
    process.channel.say(feed(0, process.ref("a", "far/0")))
    time.sleep(0.05)
    send_descriptor(process.server, {"owner": "far/0", "epoch": 1, "gone": True})
    assert process.channel.heard(StageFailed)
    [failed] = process.channel.of(StageFailed)
    assert "the arena of far/0 (epoch 1) is gone" in failed.error.message


def test_a_segment_that_is_gone_fails_only_what_lies_in_it(process: Process) -> None:
    """Fault: the end of one payload's memory fails everything that waits for the arena of the same owner."""
    process.connector.out_of_reach.add("far/0")
    process.speaker()
    in_segment = msgspec.structs.replace(process.ref("a", "far/0"), location="segment")
    process.channel.say(feed(0, in_segment))
    time.sleep(0.05)
    send_descriptor(process.server, {"owner": "far/0", "epoch": 1, "gone": True})
    send_descriptor(process.server, {"owner": "far/0", "epoch": 1, "key": in_segment.key + 1, "gone": True})
    time.sleep(0.05)
    assert process.channel.of(StageFailed) == []
    send_descriptor(process.server, {"owner": "far/0", "epoch": 1, "key": in_segment.key, "gone": True})
    assert process.channel.heard(StageFailed)
    [failed] = process.channel.of(StageFailed)
    assert f"segment {in_segment.key} of far/0 (epoch 1) is gone" in failed.error.message


def test_a_descriptor_that_does_not_come_fails_the_request_in_time(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a wait without a deadline."""
    monkeypatch.setattr(intake, "DESCRIPTOR_WAIT_S", 0.05)
    process.connector.out_of_reach.add("far/0")
    process.speaker()
    process.channel.say(feed(0, process.ref("a", "far/0")))
    assert process.channel.heard(StageFailed)
    assert process.channel.of(StageFailed)[0].error.code == "connector"


def test_a_cancel_drops_what_waits_for_a_descriptor(process: Process) -> None:
    """Fault: an item of a cancelled attempt arrives late, or a cancel waits for the arena."""
    process.connector.out_of_reach.add("far/0")
    process.speaker()
    process.channel.say(feed(0, process.ref("a", "far/0")))
    process.channel.say(Cancel(**WHERE, request_id="r", attempt=1, stage_id=1))
    assert process.channel.heard(CancelDone)
    reader, writer = os.pipe()
    send_descriptor(process.server, {"owner": "far/0", "epoch": 1}, reader)
    time.sleep(0.05)
    assert process.channel.of(Consumed) == process.channel.of(StageFailed) == []
    os.close(reader)
    os.close(writer)


def test_a_payload_that_cannot_be_read_fails_its_request() -> None:
    """Fault: a broken reference ends the worker."""

    class Broken(TightConnector):
        def get(self, ref: PayloadRef) -> MultimodalPayload:
            raise ConnectorError("outside of the arena")

    process = Process(connector=Broken())
    assert process.channel.heard(Ready)
    process.speaker()
    process.channel.say(feed(0, process.ref("a")))
    assert process.channel.heard(StageFailed)
    assert process.channel.of(StageFailed)[0].error.message == "outside of the arena"
    process.server.close()
    assert process.ends() == EXIT_ORPHANED


def test_what_stays_in_the_process_goes_over_by_reference() -> None:
    """Fault: a payload for a stage of the same worker is copied into the arena, or its release frees nothing."""
    writer = echo_config(outputs=(OutputEdge(target=1, connector="inproc"),), final_output_type=None)
    process = Process(writer, sound_config())
    assert process.channel.heard(Ready)
    writing = submit(words="a b")
    process.channel.say(msgspec.structs.replace(writing, active_targets=(1,)))
    assert process.channel.heard(StageDone)
    refs = [item.ref for item in process.channel.of(Emitted) if item.ref is not None]
    assert [(ref.connector, ref.owner, ref.epoch, ref.inline) for ref in refs] == [("inproc", "main/0", 1, None)] * 2
    process.speaker()
    process.channel.say(*(feed(seq, ref) for seq, ref in enumerate(refs)), feed(2, None, last=True))
    assert process.channel.heard(StageDone, 2)
    assert process.connector.puts == 2  # the sound, which leaves the process
    process.channel.say(*(Release(ref=ref) for ref in refs), Shutdown())
    assert process.ends() == EXIT_STOPPED
    assert process.worker._connectors["inproc"].health()["payloads"] == 0
    process.server.close()


def test_a_release_wakes_who_waits_for_room() -> None:
    """Fault: a request that found no room sleeps for ever."""
    process = Process(connector=TightConnector(1))
    assert process.channel.heard(Ready)
    process.speaker()
    process.channel.say(feed(0, process.ref("a b"), last=True))
    assert process.channel.heard(Emitted)
    time.sleep(0.05)
    assert process.channel.of(StageDone) == []
    process.channel.say(Release(ref=process.channel.of(Emitted)[0].ref))
    assert process.channel.heard(StageDone)
    process.server.close()
    assert process.ends() == EXIT_ORPHANED


def test_credit_reaches_the_source_of_its_edge() -> None:
    """Fault: a Grant goes to the target's stage, and the source stands still."""
    process = Process(sound_config())
    assert process.channel.heard(Ready)
    windowed = submit(stage_id=1)
    process.channel.say(
        Submit(
            **WHERE,
            stage_id=1,
            request=windowed.request,
            attempt=1,
            order=(0, 0),
            active_targets=(CLIENT,),
            windows={CLIENT: 1},
        ),
        feed(0, process.ref("a b"), last=True),
    )
    assert process.channel.heard(Emitted)
    process.channel.say(Grant(**WHERE, request_id="r", attempt=1, source=1, target=CLIENT, credits=1))
    assert process.channel.heard(StageDone)
    process.server.close()
    process.ends()


def test_messages_for_another_incarnation_are_dropped(process: Process) -> None:
    """Fault: a late message for the worker's predecessor starts a request that nobody waits for."""
    process.channel.say(submit("old", epoch=7), submit("new"))
    assert process.channel.heard(StageDone)
    assert {done.request_id for done in process.channel.of(StageDone)} == {"new"}


def test_shutdown_ends_the_worker_after_the_current_steps() -> None:
    """Fault: a shutdown that waits for all requests, or leaves the process behind."""
    process = Process()
    assert process.channel.heard(Ready)
    process.channel.say(submit(words="sleep " * 50))
    assert process.channel.heard(Emitted)
    process.channel.say(Shutdown())
    assert process.ends() == EXIT_STOPPED
    process.server.close()


def test_the_end_of_the_life_line_ends_the_worker(process: Process) -> None:
    """Fault: orphans."""
    process.server.close()
    assert process.ends() == EXIT_ORPHANED


def test_a_driver_that_does_not_read_ends_the_worker(process: Process) -> None:
    """Fault: reports are lost in silence and requests never end."""
    process.channel.deaf = True
    assert process.ends() == EXIT_FAILED


@pytest.mark.parametrize("error", [ConfigError("hook 'x:y' does not resolve"), FileNotFoundError("no weights")])
def test_a_stage_that_cannot_be_loaded_is_told_with_its_name(error: Exception) -> None:
    """Fault: the server waits for its start timeout although the reason is known."""

    def build(config: StageConfig, connectors: Connectors) -> StageHost:
        raise error

    process = Process(echo_config(), build=build)
    assert process.ends() == EXIT_FAILED
    [failed] = process.channel.of(LoadFailed)
    assert (failed.stage_id, failed.error.stage) == (0, "writer")
    assert str(error) in failed.error.message
    process.server.close()


def test_a_loop_that_dies_of_its_own_fault_ends_the_worker() -> None:
    """Fault: a process that sends heartbeats although nobody steps."""

    class Crashing(StageHost):
        def step(self) -> Any:
            raise SystemError("a fault of the host itself")

    def build(config: StageConfig, connectors: Connectors) -> StageHost:
        return Crashing(config, build_host(config, connectors)._engine, connectors)

    process = Process(echo_config(), build=build)
    assert process.channel.heard(Ready)
    process.channel.say(submit())
    assert process.ends() == EXIT_FAILED
    process.server.close()


def test_a_worker_logs_what_its_server_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the level that was asked for holds in the server alone."""
    monkeypatch.setenv("OMNISTAGE_LOG_LEVEL", "error")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"no plan")))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(msgspec.MsgspecError):
            worker_module.main()
        assert logging.getLogger("omnistage").level == logging.ERROR
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        logging.getLogger("omnistage").setLevel(logging.NOTSET)
        logging.getLogger("omnistage").handlers.clear()
        logging.getLogger("omnistage").propagate = True
