"""The driver in a process of its own: what its callers see of it, and what becomes of them when it dies, hangs or cannot start.

What every runtime does alike is in test_base. Tests in the first half share one runtime.
"""

import gc
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from omnistage.obs.figures import StageFigures
from omnistage.orchestrator.machine import Orchestrator
from omnistage.runtime import driver_process
from omnistage.runtime import remote as remote_module
from omnistage.runtime.base import Taken
from omnistage.runtime.event_log import read_log, replay
from omnistage.runtime.remote import RemoteDriver
from tests.processes import running
from tests.runtime.harness import Caller, alive, driver, eventually, halt, pids, remote, request, steps, two_stages

FAULTY = "tests.runtime.faulty_driver"


class Observed:
    """What was said of stages and edges, without times."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.seconds: list[float] = []

    def stage_ended(self, figures: StageFigures) -> None:
        self.said.append((figures.stage, figures.replica, figures.outcome, figures.error))

    def item_sent(self, source: str, target: str, nbytes: int) -> None:
        self.said.append((source, target, nbytes))

    def item_taken(self, source: str, target: str, transfer_s: float, queue_s: float) -> None:
        self.said.append((source, target))
        self.seconds += [transfer_s, queue_s]


def ready(runtime: RemoteDriver) -> RemoteDriver:
    runtime.start()
    status = runtime.wait_ready(20.0)
    assert status.state == "ready", status
    return runtime


def driver_pid(runtime: RemoteDriver) -> int:
    assert runtime._driver is not None
    return runtime._driver.process.pid


def zygote_pid(runtime: RemoteDriver) -> int | None:
    told: queue.Queue[Any] = queue.Queue()
    runtime.inspect(told.put)
    pid: int | None = told.get(timeout=5.0)["driver"]["runtime"]["zygote"]["pid"]
    return pid


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("remote")


@pytest.fixture(scope="module")
def observed() -> Observed:
    return Observed()


@pytest.fixture(scope="module")
def shared(folder: Path, observed: Observed) -> Iterator[RemoteDriver]:
    runtime = ready(remote(*two_stages(folder), record=folder / "events", observer=observed, restart_first_s=0.1))
    yield runtime
    runtime.close(0.0)


@pytest.fixture
def made() -> Iterator[list[RemoteDriver]]:
    """Closes what a test has made."""
    runtimes: list[RemoteDriver] = []
    yield runtimes
    for runtime in runtimes:
        runtime.close(0.0)


# ---- what callers see ----


def test_a_caller_that_takes_nothing_is_held_up_by_its_window(shared: RemoteDriver) -> None:
    """Fault: media pile up in the server or between it and its driver for a caller that does not read."""
    slow = Caller(shared, request("slow", items=12, samples=200_000), takes=False)
    slow.next()
    quick = Caller(shared, request("quick", items=3))
    assert quick.end().outcome == "finished"
    time.sleep(0.3)
    while not slow._told.empty():
        slow.next()
    assert 1 <= len(slow.items) <= 2  # 800 kB each, of a window of 2 MiB
    for item in slow.items:
        shared.took([Taken("slow", item.source, item.seq, item.attempt)])
    slow._takes = True
    assert slow.end().outcome == "finished"
    np.testing.assert_array_equal(slow.samples(1), np.tile(np.arange(200_000, dtype=np.float32) * 2, 12))
    assert shared.status().open_requests == 0


def test_what_is_wrong_is_refused_at_once(shared: RemoteDriver) -> None:
    """Fault: two callers under one id; a request that cannot be sent ends the runtime; a caller's exception does."""

    def faulty(message: object) -> None:
        raise RuntimeError("the caller's own fault")

    shared.submit(request("faulty", items=2), faulty)
    first = Caller(shared, request("same", items=3, pause_s=0.05))
    second = Caller(shared, request("same", items=1)).end(1.0)
    assert second.error is not None and (second.error.code, second.error.field) == ("invalid_request", "request_id")
    odd = Caller(shared, request("odd", items=1, what=object())).end(1.0)
    assert odd.error is not None and odd.error.code == "invalid_request"
    assert first.end().outcome == "finished" and first.after_closed == 0
    assert eventually(lambda: shared.status().open_requests == 0)


def test_control_calls_and_looks_inside_are_answered(shared: RemoteDriver) -> None:
    """Fault: a call that waits for ever, or a driver whose memory, threads and tables nobody can see."""
    told: queue.Queue[Any] = queue.Queue()
    shared.control("fly", {}, lambda results, error: told.put((results, error)))
    _results, error = told.get(timeout=5.0)
    assert error is not None and error.code == "unsupported"
    shared.inspect(told.put)
    held = told.get(timeout=5.0)
    assert held["runtime"]["sinks"] == 0
    assert held["driver"]["process"]["pid"] == driver_pid(shared) and held["driver"]["process"]["rss_nbytes"] > 2**20
    assert held["driver"]["machine"]["open"] == 0 and held["driver"]["runtime"]["sinks"] == 0


def test_the_figures_equal_those_of_a_driver_in_a_thread(
    shared: RemoteDriver, observed: Observed, tmp_path: Path
) -> None:
    """Fault: metrics that depend on where the driver runs, gauges that stand still."""
    observed.said.clear()
    inside = Observed()
    thread = driver(*two_stages(tmp_path), observer=inside)
    thread.start()
    assert thread.wait_ready(20.0).state == "ready"
    for runtime in (shared, thread):
        closed = Caller(runtime, request("one", items=4, samples=300, stream=False)).end()
        assert closed.edges.keys() == {(0, 1), (1, -1)}
        assert closed.usage.keys() == closed.times.keys() == {0, 1} and closed.waiting_s.keys() == {0, 1}
        assert runtime.status().gauges.keys() == {"counter", "voice"}
    thread.close(0.0)
    assert sorted(observed.said, key=repr) == sorted(inside.said, key=repr)
    assert all(seconds >= 0.0 for seconds in observed.seconds)


def test_a_worker_that_dies_is_the_driver_s_to_replace(shared: RemoteDriver, folder: Path) -> None:
    """Fault: the server does not hear of it, or takes it for the death of the driver."""
    caller = Caller(shared, request("whole", items=10, pause_s=0.05, stream=False))
    before = driver_pid(shared)
    assert eventually(lambda: steps(folder, "voice", "whole") > 0)
    os.kill(pids(shared)["voice"], signal.SIGKILL)
    assert caller.end().outcome == "finished"
    status = shared.wait_ready(15.0)
    assert [replica.restarts for replica in status.replicas] == [0, 1] and status.reason == ""
    assert driver_pid(shared) == before


# ---- what becomes of a driver ----


def test_a_driver_that_is_killed_is_replaced(shared: RemoteDriver, folder: Path) -> None:
    """Fault: callers that wait for ever or hear of it twice, health that lies, workers that are left behind (one is stopped, one
    hangs in a library and cannot see the end), a record that is written over."""
    callers = [Caller(shared, request(f"open-{number}", items=500, pause_s=0.02)) for number in range(3)]
    callers[0].next()
    callers.append(Caller(shared, request("gripping", items=1, grips=True)))
    assert eventually(lambda: steps(folder, "counter", "gripping") == 1)
    answers: queue.Queue[Any] = queue.Queue()
    workers, before = pids(shared), [replica.restarts for replica in shared.status().replicas]
    halt(workers["voice"])
    shared.control("debug_state", {}, lambda results, error: answers.put(error))
    os.kill(driver_pid(shared), signal.SIGKILL)
    for caller in callers:
        closed = caller.end(3.0)
        assert closed.outcome == "failed" and closed.error is not None and caller.after_closed == 0
        assert closed.error.code == "stage_unavailable" and closed.error.retry_after_s == 1.0
        assert closed.error.message == "the driver process was killed by SIGKILL"
    assert answers.get(timeout=1.0).code == "stage_unavailable"
    status = shared.status()
    assert (status.state, status.reason) == ("degraded", "the driver process was killed by SIGKILL")
    assert status.open_requests == 0 and set(status.stages.values()) == {"restarting"}
    meanwhile = Caller(shared, request("meanwhile", items=1)).end(15.0)
    assert meanwhile.outcome == "finished" or meanwhile.error == closed.error
    status = shared.wait_ready(20.0)
    assert status.state == "ready" and status.reason == ""
    assert [replica.restarts for replica in status.replicas] == [restarts + 1 for restarts in before]
    assert Caller(shared, request("after", items=2)).end().outcome == "finished"
    assert eventually(lambda: not any(alive(pid) for pid in workers.values()))
    shared.close(0.0)
    assert not any(alive(pid) for pid in pids(shared).values())
    for record, arrived in ((folder / "events", "open-0"), (folder / "events.2", "after")):
        assert replay(record, Orchestrator).difference is None
        assert any(arrived in repr(entry.event) for entry in read_log(record))


def test_a_driver_whose_loop_stands_still_is_killed(
    made: list[RemoteDriver], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a driver that hangs, or is stopped, keeps every caller waiting, and health says that all is well; its zygote, which
    is stopped and does not see the end, is left behind."""
    for name, seconds in (("SILENCE_S", 0.8), ("DOUBT_S", 1.2)):
        monkeypatch.setattr(driver_process, name, seconds)
    made.append(remote(*two_stages(tmp_path), driver_module=FAULTY, zygote=True, restart_first_s=0.05, strikes=3))
    made[0]._plan = msgspec.structs.replace(made[0]._plan, heartbeat_s=0.1)
    runtime = made[0]
    runtime.start()
    assert eventually(lambda: runtime.status().state == "ready", 20.0)
    stopped = driver_pid(runtime)
    halt(stopped)
    assert eventually(lambda: runtime.status().state == "degraded")
    assert runtime.status().reason == "the driver process has said nothing for 0.8 s"
    os.kill(stopped, signal.SIGCONT)
    assert eventually(lambda: runtime.status().state == "ready") and driver_pid(runtime) == stopped
    assert eventually(lambda: zygote_pid(runtime) is not None, 15.0)
    zygote = zygote_pid(runtime)
    assert zygote is not None
    halt(zygote)
    closed = Caller(runtime, request("hang")).end(5.0)
    assert closed.error is not None
    assert closed.error.message == "the driver process said nothing for 2 s and was killed"
    assert not alive(stopped)
    assert eventually(lambda: not alive(zygote))
    assert eventually(lambda: runtime.status().state == "ready", 20.0)


def test_a_fault_of_the_machine_is_a_death_of_the_driver(made: list[RemoteDriver], tmp_path: Path) -> None:
    """Fault: an exception in the driver's loop ends the server, or its class and message are lost. The second death is the
    last that is allowed here: it stays down, and says so."""
    runtime = ready(remote(*two_stages(tmp_path), driver_module=FAULTY, restart_first_s=0.05, strikes=2))
    made.append(runtime)
    other = Caller(runtime, request("other", items=500, pause_s=0.02))
    other.next()
    workers = pids(runtime)
    said = "the driver process has failed: ValueError: no such state"
    for caller in (Caller(runtime, request("poison-1")), other):
        closed = caller.end(5.0)
        assert closed.error is not None and closed.error.message == said and caller.after_closed == 0
    assert runtime.wait_ready(20.0).state == "ready"
    closed = Caller(runtime, request("poison-2")).end(5.0)
    assert closed.error is not None and closed.error.message == f"{said}; after 2 deaths in 60 s it stays down"
    status = runtime.wait_ready(1.0)
    assert status.state == "degraded" and status.reason == closed.error.message
    assert set(status.stages.values()) == {"down"}
    late = Caller(runtime, request("late")).end(1.0)
    assert late.error is not None and late.error.message == closed.error.message
    assert not any(alive(pid) for pid in workers.values())


def test_a_driver_that_cannot_start_is_given_up(made: list[RemoteDriver], tmp_path: Path) -> None:
    """Fault: processes that are started again and again for ever, or a start that waits."""
    runtime = remote(*two_stages(tmp_path), driver_module="tests.runtime.no_such_module", restart_first_s=0.01)
    made.append(runtime)
    runtime.start()
    status = runtime.wait_ready(20.0)
    assert status.trouble == "the driver process exited with code 1; after 3 deaths in 60 s it stays down"
    began = time.monotonic()
    runtime.close(10.0)
    assert time.monotonic() - began < 1.0 and runtime.status().state == "stopped"


def test_closing_waits_for_no_driver_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a server that cannot be ended, descriptors and processes that it leaves behind."""
    for name, seconds in (("STOP_GRACE_S", 1.0), ("STOP_MARGIN_S", 0.1)):
        monkeypatch.setattr(remote_module, name, seconds)
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    runtime = ready(remote(*two_stages(tmp_path)))
    everyone = [driver_pid(runtime), *pids(runtime).values()]
    halt(everyone[0])
    began = time.monotonic()
    runtime.close(0.0)
    assert time.monotonic() - began < 5.0
    assert not any(alive(pid) for pid in everyone)
    assert len(os.listdir("/proc/self/fd")) == descriptors


SCRIPT = """
import sys
from pathlib import Path
from tests.runtime.harness import Caller, pids, remote, request, two_stages

runtime = remote(*two_stages(Path(sys.argv[1])))
runtime.start()
assert runtime.wait_ready(20.0).state == "ready"
print(runtime._driver.process.pid, *pids(runtime).values(), flush=True)
caller = Caller(runtime, request("one", items=int(sys.argv[2]), pause_s=0.01))
print(caller.end(30.0).outcome, len(caller.items), flush=True)
"""


@pytest.mark.parametrize(("items", "kill"), [(3, False), (1000, True)])
def test_nothing_outlives_its_server(tmp_path: Path, items: int, kill: bool) -> None:
    """Fault: a script without a main guard or without a close does not end; a killed one leaves its driver or its workers."""
    (tmp_path / "script.py").write_text(SCRIPT)
    with running(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path), str(items)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as script:
        assert script.stdout is not None
        started = [int(pid) for pid in script.stdout.readline().split()]
        assert len(started) == 3
        if kill:
            script.kill()
        answer, said = script.communicate(timeout=20.0)
    assert kill or (script.returncode, answer.split()) == (0, ["finished", "3"]), said
    assert eventually(lambda: not any(alive(pid) for pid in started), 5.0)
