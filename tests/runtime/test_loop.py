"""The thread around the machine, with a machine and replicas that are a few lines each."""

import functools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omnistage.core.errors import ConnectorError, ErrorInfo
from omnistage.core.payload import MultimodalPayload, PayloadRef
from omnistage.core.request import OmniRequest
from omnistage.orchestrator.plan import OrchestratorConfig
from omnistage.runtime.base import ClientClosed, ClientItem, ClientRestarted, Taken
from omnistage.runtime.inbox import Inbox
from omnistage.runtime.loop import RuntimeLoop
from omnistage.runtime.outbox import OutboxState
from omnistage.runtime.plan import plan_processes
from omnistage.wire.messages import (
    CLIENT,
    AbortRequested,
    Arrived,
    Close,
    Command,
    ControlReply,
    Event,
    Grant,
    Release,
    Reply,
    Restarted,
    ShutdownRequested,
    StartReplica,
    Tick,
    WakeAt,
)
from tests.runtime.harness import Caller, eventually, request, stage

REF = PayloadRef("inproc", "inproc", 0, 0)


class Scripted:
    """A machine that answers `script[type of event]`; what it was told is in `seen`."""

    def __init__(self, **script: list[Command]) -> None:
        self.script, self.seen = script, list[Event]()

    @property
    def config(self) -> OrchestratorConfig:
        return OrchestratorConfig(stages=())

    def start(self, now: float) -> list[Command]:
        return self.script.get("start", [])

    def handle(self, event: Event) -> list[Command]:
        self.seen.append(event)
        return self.script.get(type(event).__name__, [])

    def snapshot(self) -> dict[str, Any]:
        return {"replicas": {}}

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.seen]


class World(RuntimeLoop):
    """Replicas that do nothing. `acted`: the commands that reached them; `payload` is what every ref stands for."""

    payload: MultimodalPayload | Exception = MultimodalPayload()

    def __init__(self, machine: Scripted, folder: Path) -> None:
        super().__init__(machine, plan_processes((stage(0, "counter", folder),)))
        self.acted, self.shut, self.turns = list[Command](), 0, 0

    def _open(self) -> None: ...

    def _act(self, command: Command) -> None:
        self.acted.append(command)

    def _read(self, ref: PayloadRef) -> MultimodalPayload:
        if isinstance(self.payload, Exception):
            raise self.payload
        return self.payload

    def _turn(self, now: float) -> None:
        self.turns += 1

    def _deadline(self) -> float:
        return float("inf")

    def _running(self) -> bool:
        return False

    def _shut(self) -> None:
        self.shut += 1


def reply(**changes: Any) -> Reply:
    values = {"request_id": "r", "source": 0, "seq": 0, "final_output_type": "audio", "ref": REF, "last": False}
    return Reply(**{**values, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert not [thread for thread in threading.enumerate() if thread.name == "omnistage-runtime"]


def test_commands_for_callers_reach_their_sink_and_the_others_the_replicas(folder: Path) -> None:
    """Fault: a command that is carried out twice, or by the wrong side."""
    release = Release(ref=REF)
    machine = Scripted(
        Arrived=[reply(), Restarted(request_id="r", attempt=2), release, Close(request_id="r", outcome="finished")]
    )
    world = World(machine, folder)
    told: list[Any] = []
    world.submit(request("r"), told.append)
    world.start()
    assert eventually(lambda: len(told) == 3)
    world.close(0.0)
    assert [type(message) for message in told] == [ClientItem, ClientRestarted, ClientClosed]
    assert world.acted == [release] and world.shut == 1
    assert machine.kinds() == ["Arrived", "ShutdownRequested"]


def test_the_timer_fires_once_at_its_time_and_nothing_else_turns_the_loop(folder: Path) -> None:
    """Fault: a loop that polls, a timer that fires early, late, or again and again. Late is what comes after this thread, which
    waits for the same moment."""
    wake = time.monotonic() + 0.3
    machine = Scripted(start=[WakeAt(time=wake - 0.2), WakeAt(time=wake)])
    world = World(machine, folder)
    world.start()
    time.sleep(max(0.0, wake - time.monotonic()))
    woken = time.monotonic()
    assert eventually(lambda: machine.kinds() == ["Tick"])
    time.sleep(0.2)
    assert isinstance(machine.seen[0], Tick) and wake <= machine.seen[0].now < woken + 0.2
    assert machine.kinds() == ["Tick"] and world.turns <= 3
    world.close(0.0)


def test_a_payload_that_cannot_be_read_fails_its_request_and_tells_the_machine(folder: Path) -> None:
    """Fault: the caller waits for an item that will never come."""
    machine = Scripted(Arrived=[reply(), reply(seq=1), Close(request_id="r", outcome="finished")])
    world = World(machine, folder)
    world.payload = ConnectorError("the arena is gone")
    told: list[Any] = []
    world.submit(request("r"), told.append)
    world.start()
    assert eventually(lambda: "AbortRequested" in machine.kinds())
    world.close(0.0)
    assert len(told) == 1 and told[0].outcome == "failed" and told[0].error.code == "connector"
    assert [event.request_id for event in machine.seen if isinstance(event, AbortRequested)] == ["r"]


def test_what_replicas_are_told_does_not_wait_for_callers(folder: Path) -> None:
    """Fault: a stage is fed when the last of 64 sounds has been copied; a sound is released before it was copied; what callers are
    to be told is forgotten when the loop ends."""
    grant = Grant(process="p", replica=0, epoch=0, request_id="r", attempt=1, source=0, target=CLIENT, credits=1)
    close = Close(request_id="r", outcome="finished")
    world = World(Scripted(Arrived=[reply(), reply(seq=1), Release(ref=REF), grant, close]), folder)
    world._outbox = OutboxState(world._carry_out_for_callers, slice_s=0.0)
    at: list[tuple[str, int]] = []
    world.submit(request("r"), lambda message: at.append((type(message).__name__, len(world.acted))))
    world.start()
    world.close(1.0)
    assert at == [("ClientItem", 1), ("ClientItem", 1), ("ClientClosed", 2)]
    assert world.acted == [grant, Release(ref=REF)]


def test_the_id_of_a_request_that_was_given_up_is_free_when_the_machine_has_closed_it(folder: Path) -> None:
    """Fault: the end of a request whose payload was lost is told to the next request of that id."""
    machine = Scripted(Arrived=[reply()])
    world = World(machine, folder)
    world.payload = ConnectorError("the arena is gone")
    told: list[Any] = []
    world.submit(request("r"), told.append)
    world.start()
    assert eventually(lambda: "AbortRequested" in machine.kinds())
    world.submit(request("r"), told.append)
    assert eventually(lambda: len(told) == 2)
    assert told[1].error.field == "request_id"
    machine.script = {"ControlCalled": [Close(request_id="r", outcome="aborted")], "Arrived": []}
    world.control("end it", {}, lambda results, error: None)
    assert eventually(lambda: "ControlCalled" in machine.kinds())
    world.submit(request("r"), told.append)
    assert eventually(lambda: machine.kinds().count("Arrived") == 2)
    machine.script["ShutdownRequested"] = [Close(request_id="r", outcome="aborted")]
    world.close(0.0)
    assert [message.outcome for message in told] == ["failed", "failed", "aborted"]


def test_an_exception_in_the_machine_is_one_error_for_everybody(folder: Path) -> None:
    """Fault: a thread that dies in silence."""

    class Faulty(Scripted):
        def handle(self, event: Event) -> list[Command]:
            if isinstance(event, Arrived) and event.request.request_id == "b":
                raise KeyError("b")
            return []

    world = World(Faulty(), folder)
    world.start()
    answers: list[tuple[dict[str, Any], ErrorInfo | None]] = []
    world.control("tokenize", {}, lambda results, error: answers.append((results, error)))
    callers = [Caller(world, request(name)) for name in ("a", "b")]
    for caller in callers:
        closed = caller.end(5.0)
        assert closed.error is not None and closed.error.code == "internal" and "KeyError: 'b'" in closed.error.message
    assert eventually(lambda: world.status().state == "stopped")
    assert world.shut == 1 and answers[0][1] is not None
    late = Caller(world, request("c")).end(1.0)
    assert late.error is not None and late.error.code == "closed"
    world.close(0.0)


def test_callers_that_raise_do_not_end_the_runtime(folder: Path) -> None:
    """Fault: a refusal, or the answer to a control call, that its caller cannot take ends everybody else's requests."""
    machine = Scripted(ControlCalled=[ControlReply(call_id="0")])
    world = World(machine, folder)
    calls: list[object] = []

    def faulty(*told: object) -> None:
        calls.append(told)
        raise RuntimeError("the caller's own fault")

    world.submit(request("same"), lambda message: None)
    world.submit(request("same"), faulty)
    world.control("tokenize", {}, faulty)
    world.start()
    assert eventually(lambda: len(calls) == 2)
    assert world.status().state != "stopped"
    world.abort("same", "enough")
    assert eventually(lambda: "AbortRequested" in machine.kinds())
    machine.script["ShutdownRequested"] = [Close(request_id="same", outcome="aborted")]
    world.close(0.0)


def test_a_full_inbox_refuses_requests_at_once(folder: Path) -> None:
    """Fault: callers pile up without bound in front of a thread that is busy."""
    world = World(Scripted(), folder)
    world._inbox.close()
    world._inbox = Inbox(capacity=1)
    told: list[Any] = []
    for name in ("a", "b"):
        world.submit(request(name), told.append)
    assert len(told) == 1 and told[0].request_id == "b" and told[0].error.code == "queue_full"
    assert told[0].error.retry_after_s == 1.0
    world.close(0.0)
    assert [message.request_id for message in told] == ["b", "a"] and told[1].error.code == "closed"


def test_a_drain_that_does_not_end_is_cut_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a close that waits for ever for a request that never ends."""
    monkeypatch.setattr("omnistage.runtime.loop.STOP_GRACE_S", 0.2)
    machine = Scripted(start=[StartReplica(process="counter", replica=0, epoch=1)])
    world = World(machine, folder)
    world.start()
    caller = Caller(world, request("r"))
    began = time.monotonic()
    world.close(0.1)
    assert 0.2 <= time.monotonic() - began < 2.0
    closed = caller.end(1.0)
    assert closed.error is not None and closed.error.code == "closed"
    shutdowns = [event for event in machine.seen if isinstance(event, ShutdownRequested)]
    assert [shutdown.drain_timeout_s for shutdown in shutdowns] == [0.1]


def test_closing_what_was_never_started_ends_it(folder: Path) -> None:
    """Fault: a constructor that failed half-way leaves descriptors, or a close that joins a thread that never ran."""
    world = World(Scripted(), folder)
    caller = Caller(world, request("r"))
    world.close(0.0)
    world.close(0.0)
    closed = caller.end(1.0)
    assert closed.error is not None and closed.error.code == "closed" and world.shut == 1


def test_a_sink_may_speak_to_the_runtime(folder: Path) -> None:
    """Fault: a lock that a caller meets again from inside its own call."""
    machine = Scripted(Arrived=[reply(), Close(request_id="r", outcome="finished")])
    world = World(machine, folder)
    done = threading.Event()

    def sink(message: object) -> None:
        world.took([Taken("r", 0, 0, 1)])
        world.status()
        if isinstance(message, ClientClosed):
            world.close(0.0)
            done.set()

    world.submit(request("r"), sink)
    world.start()
    assert done.wait(5.0)
    assert eventually(lambda: world.status().state == "stopped")


def test_a_descriptor_that_an_earlier_callback_closed_is_not_called_for(folder: Path) -> None:
    """Fault: of two descriptors that became readable at once the first one's callback ends the second one's owner."""
    world = World(Scripted(), folder)
    ends = [os.eventfd(1), os.eventfd(1)]
    called: list[int] = []

    def close_both(index: int) -> None:
        called.append(index)
        for descriptor in ends:
            world._selector.unregister(descriptor)
            os.close(descriptor)

    for index, descriptor in enumerate(ends):
        world._watch(descriptor, functools.partial(close_both, index))
    world.start()
    assert eventually(lambda: bool(called))
    world.close(0.0)
    assert len(called) == 1 and world.status().state == "stopped" and world.shut == 1


def requests_of(events: list[Event]) -> list[OmniRequest]:
    return [event.request for event in events if isinstance(event, Arrived)]


def test_events_arrive_in_the_order_in_which_callers_spoke(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: an abort that overtakes the request it is for."""
    monkeypatch.setattr("omnistage.runtime.loop.STOP_GRACE_S", 0.1)
    machine = Scripted()
    world = World(machine, folder)
    for number in range(50):
        world.submit(request(str(number)), lambda message: None)
        world.abort(str(number), "at once")
    world.start()
    assert eventually(lambda: len(machine.seen) == 100)
    assert [asked.request_id for asked in requests_of(machine.seen)] == [str(number) for number in range(50)]
    assert machine.kinds() == ["Arrived", "AbortRequested"] * 50
    nows = [event.now for event in machine.seen]
    assert nows == sorted(nows)
    world.close(0.0)
