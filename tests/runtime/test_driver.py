"""The driver with real worker processes: deaths of every kind, what is left behind, what it costs to do nothing."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnistage.config.stage import OutputEdge, arena_nbytes
from omnistage.orchestrator.machine import Orchestrator
from omnistage.runtime.driver import Driver
from omnistage.runtime.event_log import read_log, replay
from omnistage.runtime.plan import plan_processes
from omnistage.wire.channels import BATCH, WorkerChannel
from omnistage.wire.worker import Heartbeat
from tests.processes import running
from tests.runtime.harness import (
    Caller,
    alive,
    cpu_s,
    driver,
    eventually,
    halt,
    machine,
    pids,
    request,
    stage,
    two_stages,
    workers_of,
)

made: list[Driver] = []


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Closes what a test started, also one that failed, so that a fault shows in one test only."""
    yield
    for runtime in made:
        runtime.close(0.0)
    made.clear()


def begun(*stages: Any, **options: Any) -> Driver:
    made.append(driver(*stages, **options))
    made[-1].start()
    return made[-1]


def started(*stages: Any, **options: Any) -> Driver:
    runtime = begun(*stages, **options)
    assert runtime.wait_ready(15.0).state == "ready"
    return runtime


def test_kill_of_a_downstream_worker_in_mid_answer_is_one_error_and_the_next_request_succeeds(tmp_path: Path) -> None:
    """Fault: a dead worker leaves its caller waiting, or its stage down."""
    runtime = started(*two_stages(tmp_path), restart_first_s=0.1)
    caller = Caller(runtime, request("killed", items=500, pause_s=0.02))
    caller.next()
    os.kill(pids(runtime)["voice"], signal.SIGKILL)
    closed = caller.end(2.0)
    assert closed.outcome == "failed" and closed.error is not None
    assert closed.error.stage == "voice" and "killed by SIGKILL" in closed.error.message
    assert Caller(runtime, request("next", items=2)).end(10.0).outcome == "finished"
    assert caller.after_closed == 0
    assert [replica.restarts for replica in runtime.status().replicas] == [0, 1]
    assert runtime.status().state == "ready"
    runtime.close(0.0)


def test_a_whole_answer_survives_the_death_of_a_worker(tmp_path: Path) -> None:
    """Fault: a request that could be replayed fails, or its answer holds items of both attempts."""
    runtime = started(*two_stages(tmp_path), restart_first_s=0.1)
    caller = Caller(runtime, request("whole", items=20, pause_s=0.05, samples=20000, stream=False))
    caller.next()
    os.kill(pids(runtime)["counter"], signal.SIGKILL)
    closed = caller.end(10.0)
    assert closed.outcome == "finished" and closed.attempts == 2
    np.testing.assert_array_equal(caller.samples(1), np.tile(np.arange(20000, dtype=np.float32) * 2, 20))
    runtime.close(0.0)


def test_what_a_dead_worker_had_emitted_stays_readable_until_it_was_read(tmp_path: Path) -> None:
    """Fault: an arena that is closed at its owner's death, or one that is kept for ever."""
    runtime = started(*two_stages(tmp_path, extras={"pause_s": 0.3}), restart_first_s=0.1)
    arenas = runtime._supervisor.arenas
    caller = Caller(runtime, request("held", items=3, samples=30000))
    assert eventually(lambda: any(arena.keys for arena in arenas._arenas.values()))
    os.kill(pids(runtime)["counter"], signal.SIGKILL)
    assert caller.end(10.0).outcome in ("finished", "failed")
    assert eventually(lambda: len(arenas) == 2 and not any(arena.keys for arena in arenas._arenas.values()))
    assert Caller(runtime, request("next", items=2, samples=30000)).end(10.0).outcome == "finished"
    runtime.close(0.0)


def test_a_step_that_hangs_is_killed_and_its_request_told(tmp_path: Path) -> None:
    """Fault: a hung forward pass holds its request for ever."""
    limits = {"first_step_timeout_s": 0.5, "step_timeout_s": 0.5}
    runtime = started(*two_stages(tmp_path, extras={"pause_s": 60.0}, **limits), restart_first_s=0.1)
    closed = Caller(runtime, request("hung", items=1, stream=True)).end(15.0)
    assert closed.outcome == "failed" and closed.error is not None
    assert "a step of voice has been running for" in closed.error.message
    runtime.close(0.0)


def test_a_stopped_worker_that_says_nothing_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a worker that is alive and deaf is taken for a healthy one, by health or for ever."""
    monkeypatch.setattr("omnistage.runtime.supervisor.SILENCE_S", 1.5)
    monkeypatch.setattr("omnistage.runtime.supervisor.DOUBT_S", 1.0)
    runtime = started(stage(0, "counter", tmp_path), restart_first_s=0.1)
    pid = pids(runtime)["counter"]
    halt(pid)
    assert eventually(lambda: runtime.status().stages == {"counter": "silent"})
    assert runtime.status().state == "degraded" and alive(pid)
    assert eventually(lambda: not alive(pid), 10.0)
    assert eventually(lambda: runtime.status().state == "ready")
    runtime.close(0.0)


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        ("load_broken", "stage voice: no weights in"),
        ("load_crashing", "stage voice: exited with code 7: the library says goodbye"),
        ("load_slowly", "stage voice: was not ready within 1 s"),
    ],
)
def test_a_worker_that_does_not_come_up_says_why(tmp_path: Path, loader: str, reason: str) -> None:
    """Fault: "stage failed to start", and the reason is somewhere in a log; or a start that hangs."""
    loads = {"loader": f"tests.runtime.family:{loader}", "start_timeout_s": 1.0 if loader == "load_slowly" else 10.0}
    runtime = begun(*two_stages(tmp_path, **loads), strikes=1)
    waiting = Caller(runtime, request("early", items=1))
    assert runtime.wait_ready(10.0).stages["voice"] == "down"
    assert any(replica.note.startswith(reason) for replica in runtime.status().replicas)
    closed = waiting.end(5.0)
    assert closed.error is not None and closed.error.code == "stage_unavailable" and reason in closed.error.message
    runtime.close(0.0)
    assert not workers_of(os.getpid())


def test_when_traffic_stops_nothing_is_held(tmp_path: Path) -> None:
    """Fault: an abort or a death in the middle of a diamond leaves a slot, a credit or a piece of an arena taken."""
    runtime = started(
        stage(0, "counter", tmp_path, targets=(1, 2)),
        stage(1, "voice", tmp_path, sources=(0,), targets=(3,)),
        stage(2, "picture", tmp_path, sources=(0,), targets=(3,)),
        stage(3, "mix", tmp_path, sources=(1, 2)),
        restart_first_s=0.1,
    )
    sizes = [4, 20000, 40000]
    callers = []
    for number in range(60):
        asked = request(
            str(number), items=1 + number % 4, samples=sizes[number % 3], pause_s=0.005, stream=number % 2 == 0
        )
        callers.append(Caller(runtime, asked))
        if number % 5 == 0:
            runtime.abort(str(number), "changed its mind")
        if number == 30:
            os.kill(pids(runtime)["picture"], signal.SIGKILL)
    outcomes = [caller.end(20.0).outcome for caller in callers]
    assert set(outcomes) <= {"finished", "failed", "aborted"} and outcomes.count("finished") >= 20
    for number, caller in enumerate(callers):
        if outcomes[number] == "finished":
            assert len(caller.samples(3)) == 2 * (1 + number % 4) * sizes[number % 3]
    tables = ("open", "queued", "refs_held", "slots", "timers")
    assert eventually(lambda: not any(runtime._machine.snapshot()[table] for table in tables))
    arenas = runtime._supervisor.arenas._arenas.values()
    assert eventually(lambda: len(arenas) == 4 and not any(arena.keys for arena in arenas))
    figures = ("running", "waiting", "held", "arena_used_nbytes")
    assert eventually(
        lambda: not any(gauges.get(figure, 0) for gauges in runtime.status().gauges.values() for figure in figures)
    )


def test_a_wake_up_hears_one_batch_and_a_death_hears_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: workers that say much keep callers waiting, or the last words of the dead come after the news of their death."""
    runtime = Driver(machine(two_stages(tmp_path)), plan_processes(two_stages(tmp_path)))
    made.append(runtime)
    heard: list[str] = []
    monkeypatch.setattr(runtime, "_heard", lambda identity, message: heard.append(identity))
    worker = WorkerChannel(runtime._channel.bind(), "counter/0/1/t")
    for _ in range(2 * BATCH + 7):
        assert worker.send(Heartbeat(step_age_s={}))
    runtime._listen()
    assert 0 < len(heard) <= BATCH
    worker.receive()  # what the socket did not take at once leaves in here
    runtime._drain()
    assert len(heard) == 2 * BATCH + 7
    worker.close()


def test_a_full_arena_does_not_lock_up_its_readers(tmp_path: Path) -> None:
    """Fault: younger requests, whose turn at the next stage has not come, fill the arena that the one whose turn it is needs.
    Eight first items fill it; the room of the one that is read goes to the ninth, and the reader's next item finds none."""
    sends = (OutputEdge(target=1, later=2, adaptive=False, item_nbytes=136_000),)
    together: dict[str, Any] = {
        "outputs": sends,
        "final_output_type": None,
        "extras": {"batch_key": "all"},
        "max_num_seqs": 16,
    }
    stages = (
        stage(0, "counter", tmp_path, **together),
        stage(1, "voice", tmp_path, sources=(0,), max_num_seqs=1, lookahead=0),
    )
    made.append(Driver(machine(stages), plan_processes(stages, arena_nbytes=arena_nbytes(2**20, 1))))
    made[-1].start()
    callers = [Caller(made[-1], request(str(number), items=3, samples=17_000, pause_s=0.01)) for number in range(9)]
    assert [caller.end(10.0).outcome for caller in callers] == ["finished"] * 9


# ---- what is left behind ----


def test_closing_leaves_no_process_thread_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: orphans, names in /dev/shm, sockets in the temporary folder, descriptors that add up with every start."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    shared = set(Path("/dev/shm").iterdir())
    runtime = started(*two_stages(tmp_path))
    Caller(runtime, request("warm", items=2, samples=30000)).end()
    runtime.close(0.0)
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        runtime = started(*two_stages(tmp_path))
        caller = Caller(runtime, request("open", items=500, pause_s=0.02))
        caller.next()
        began = time.monotonic()
        runtime.close(0.0)
        assert time.monotonic() - began < 8.0
        assert caller.end(1.0).outcome == "failed"
    assert not workers_of(os.getpid())
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, descriptors)
    assert set(Path("/dev/shm").iterdir()) <= shared and not list(temporary.iterdir())


def test_a_hung_step_does_not_hold_up_closing(tmp_path: Path) -> None:
    """Fault: a shutdown that waits for a forward pass."""
    runtime = started(*two_stages(tmp_path, extras={"pause_s": 60.0}))
    Caller(runtime, request("hung", items=1))
    time.sleep(0.2)
    began = time.monotonic()
    runtime.close(0.0)
    assert time.monotonic() - began < 8.0
    assert not workers_of(os.getpid())


SCRIPT = """
import sys
from pathlib import Path
from tests.runtime.harness import Caller, driver, request, two_stages, pids

runtime = driver(*two_stages(Path(sys.argv[1])))
runtime.start()
assert runtime.wait_ready(15.0).state == "ready"
print(*pids(runtime).values(), flush=True)
caller = Caller(runtime, request("one", items=int(sys.argv[2]), pause_s=0.01))
print(caller.end(30.0).outcome, len(caller.items), flush=True)
"""


def run_script(folder: Path, items: int) -> AbstractContextManager["subprocess.Popen[str]"]:
    """A program without a main guard that uses the runtime and falls off its end without closing it."""
    (folder / "script.py").write_text(SCRIPT)
    return running(
        [sys.executable, str(folder / "script.py"), str(folder), str(items)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_script_without_a_main_guard_works_and_ends(tmp_path: Path) -> None:
    """Fault: workers that import the script again, or a program that does not end because nobody closed."""
    with run_script(tmp_path, items=3) as script:
        output, errors = script.communicate(timeout=20.0)
    pid_line, answer = output.splitlines()
    assert script.returncode == 0, errors
    assert answer == "finished 3"
    assert not any(alive(int(pid)) for pid in pid_line.split())


def test_no_worker_outlives_a_server_that_was_killed(tmp_path: Path) -> None:
    """Fault: orphans that hold memory and cores after kill -9 of the parent."""
    with run_script(tmp_path, items=1000) as script:
        assert script.stdout is not None
        workers = [int(pid) for pid in script.stdout.readline().split()]
        assert len(workers) == 2 and all(alive(pid) for pid in workers)
    assert eventually(lambda: not any(alive(pid) for pid in workers), 5.0)


def test_four_runtimes_at_once_do_not_meet(tmp_path: Path) -> None:
    """Fault: a name or a port that two servers share."""
    runtimes = []
    for index in range(4):
        (tmp_path / str(index)).mkdir()
        runtimes.append(begun(stage(0, "counter", tmp_path / str(index), extras={"factor": index})))
    callers = [Caller(runtime, request("same-id", items=2)) for runtime in runtimes]
    for factor, caller in enumerate(callers):
        assert caller.end(15.0).outcome == "finished"
        np.testing.assert_array_equal(caller.samples(0), np.tile(np.arange(4, dtype=np.float32) * factor, 2))
    for runtime in runtimes:
        runtime.close(0.0)
    assert not workers_of(os.getpid())


def test_doing_nothing_costs_next_to_nothing(tmp_path: Path) -> None:
    """Fault: a loop that polls. Generous: 5 % of a core for three processes, of which two send heartbeats."""
    runtime = started(*two_stages(tmp_path))
    Caller(runtime, request("warm", items=2)).end()
    everyone = [os.getpid(), *pids(runtime).values()]
    before = [cpu_s(pid) for pid in everyone]
    time.sleep(4.0)
    used = [cpu_s(pid) - earlier for pid, earlier in zip(everyone, before, strict=True)]
    runtime.close(0.0)
    assert sum(used) <= 0.2, used


# ---- the record, and faults of our own ----


def test_a_recorded_life_replays_to_the_same_commands(tmp_path: Path) -> None:
    """Fault: an event log that does not hold what the machine saw, or a machine that asks a clock."""
    record = tmp_path / "events.jsonl"
    stages = two_stages(tmp_path)
    runtime = started(*stages, record=record, restart_first_s=0.1)
    Caller(runtime, request("one", items=3, samples=30000)).end()
    caller = Caller(runtime, request("two", items=100, pause_s=0.02))
    caller.next()
    os.kill(pids(runtime)["voice"], signal.SIGKILL)
    caller.end()
    runtime.close(0.0)
    kinds = {type(entry.event).__name__ for entry in read_log(record)}
    assert {"NoneType", "Arrived", "ReplicaUp", "ReplicaDown", "Reported", "ClientTook", "ShutdownRequested"} <= kinds
    assert replay(record, Orchestrator).difference is None
    assert replay(record, lambda _: machine(stages, restart_first_s=9.0)).difference is not None


def test_edges_are_measured_between_real_workers(tmp_path: Path) -> None:
    """Fault: bytes or items that do not add up, a time that is negative or never measured, or what the meter never forgets."""
    runtime = started(*two_stages(tmp_path, extras={"factor": 2, "pause_s": 0.05}))
    closed = Caller(runtime, request("one", items=4, samples=30000)).end()
    handed, delivered = closed.edges[0, 1], closed.edges[1, -1]
    assert (handed.items, delivered.items) == (4, 4)
    assert 4 * 30000 * 4 <= handed.nbytes < 4 * 30000 * 4 + 1000
    assert 0.05 < handed.queue_s < 4 * 0.05 * 4
    assert 0.0 < handed.transfer_s < 1.0
    assert 0.0 < delivered.transfer_s < 1.0
    assert len(runtime._meter) == 0
    runtime.close(0.0)


def test_a_fault_of_the_machine_is_told_to_every_caller(tmp_path: Path) -> None:
    """Fault: the runtime's thread dies in silence and everybody waits."""
    stages = two_stages(tmp_path)
    faulty: Any = machine(stages)
    runtime = Driver(faulty, plan_processes(stages))
    made.append(runtime)
    runtime.start()
    assert runtime.wait_ready(15.0).state == "ready"
    caller = Caller(runtime, request("open", items=500, pause_s=0.02))
    caller.next()
    faulty._state = None
    closed = caller.end(5.0)
    assert closed.outcome == "failed" and closed.error is not None and closed.error.code == "internal"
    assert "the runtime has failed: AttributeError: " in closed.error.message
    status = runtime.wait_stopped(5.0)
    assert (status.state, status.reason) == ("stopped", closed.error.message)
    late = Caller(runtime, request("late")).end(1.0)
    assert late.error is not None and (late.error.code, late.error.message) == ("closed", closed.error.message)
    assert not workers_of(os.getpid())
    runtime.close(0.0)


def test_a_driver_that_is_never_started_holds_nothing(tmp_path: Path) -> None:
    """Fault: a runtime that was made for a refused request blocks its program when it is collected."""
    before = threading.active_count()
    unused = driver(*two_stages(tmp_path))
    assert threading.active_count() == before
    unused.close(0.0)
    del unused
