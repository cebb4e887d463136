"""Workers that are forked: that they are, that nobody notices, and what the death of the zygote costs (nothing)."""

import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omnistage.runtime.driver import Driver
from omnistage.runtime.plan import plan_processes
from omnistage.runtime.zygote import shared_environment
from tests.processes import running
from tests.runtime.harness import (
    Caller,
    alive,
    driver,
    eventually,
    halt,
    pids,
    request,
    stage,
    two_stages,
    workers_of,
)

made: list[Driver] = []


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Zygotes are made at once; what a test started is closed, also if it failed."""
    monkeypatch.setattr("omnistage.runtime.zygote.QUIET_S", 0.05)
    yield
    for runtime in made:
        runtime.close(0.0)
    made.clear()


def started(*stages: Any) -> Driver:
    made.append(driver(*stages, zygote=True, restart_first_s=0.05, strikes=9))
    made[-1].start()
    assert made[-1].wait_ready(15.0).state == "ready"
    return made[-1]


def zygote_of(runtime: Driver, *, other_than: int | None = None) -> int:
    """Its pid, once it can fork."""
    keeper = runtime._supervisor.zygote
    assert eventually(lambda: keeper.pid not in (None, other_than), 10.0)
    assert keeper.pid is not None
    return keeper.pid


def sleeps(pid: int, seconds: float) -> bool:
    """True if no thread of it waits anew, or is put aside, in that time: who polls does, at every turn."""

    def turns() -> int:
        statuses = [(thread / "status").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
        return sum(
            int(count) for status in statuses for count in re.findall(r"voluntary_ctxt_switches:\s+(\d+)", status)
        )

    before = turns()
    time.sleep(seconds)
    return turns() == before


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def killed(runtime: Driver, process: str) -> int:
    """Kills the worker of `process`; the pid of the next one, when it is ready."""
    before = pids(runtime)[process]
    os.kill(before, signal.SIGKILL)
    assert eventually(lambda: pids(runtime).get(process, before) != before, 10.0)
    assert eventually(lambda: runtime.status().state == "ready", 10.0)
    return pids(runtime)[process]


def answers(runtime: Driver, name: str) -> bool:
    return Caller(runtime, request(name, items=3, samples=30000)).end(10.0).outcome == "finished"


def test_a_restart_is_a_fork_and_its_death_is_told_as_any_other(tmp_path: Path) -> None:
    """Fault: a zygote that nobody forks from; a death that is not seen, or told without its cause, where the dead was no child
    of the server; a stage's own variable that reaches another worker, or not its own, because it was forked."""
    runtime = started(*two_stages(tmp_path, env={"OWN": "yes"}))

    def has_own() -> dict[str, bool]:
        return {name: b"OWN=yes" in Path(f"/proc/{pid}/environ").read_bytes() for name, pid in pids(runtime).items()}

    assert has_own() == {"counter": False, "voice": True}
    zygote = zygote_of(runtime)
    forked = killed(runtime, "counter")
    assert parent_of(forked) == zygote and os.getsid(forked) == forked
    caller = Caller(runtime, request("killed", items=500, pause_s=0.02))
    caller.next()
    assert parent_of(killed(runtime, "counter")) == zygote and not alive(forked)
    closed = caller.end(5.0)
    assert closed.error is not None and "(stage counter: killed by SIGKILL)" in closed.error.message
    assert parent_of(killed(runtime, "voice")) == os.getpid()
    assert answers(runtime, "next") and has_own() == {"counter": False, "voice": True}


def test_the_death_of_the_zygote_costs_nothing(tmp_path: Path) -> None:
    """Fault: workers that die with it, a start that fails for want of it, a zygote that is never made again, or one that
    is made again and again while nothing needs it."""
    runtime = started(*two_stages(tmp_path))
    zygote = zygote_of(runtime)
    forked = killed(runtime, "voice")
    caller = Caller(runtime, request("open", items=20, pause_s=0.02))
    os.kill(zygote, signal.SIGKILL)
    assert caller.end(10.0).outcome == "finished" and pids(runtime)["voice"] == forked
    assert eventually(lambda: not alive(zygote)) and runtime._supervisor.zygote.pid is None
    time.sleep(0.3)
    assert set(workers_of(os.getpid())) == {pids(runtime)["counter"]}
    executed = killed(runtime, "voice")
    assert parent_of(executed) == os.getpid() and answers(runtime, "next")
    notes = [replica.note for replica in runtime.status().replicas if replica.process == "voice"]
    assert "loaded" in notes[0] and not alive(forked)
    second = zygote_of(runtime, other_than=zygote)
    assert parent_of(killed(runtime, "counter")) == second


def test_a_zygote_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault: a start, or the burial of the dead, that waits for a process which does not answer."""
    monkeypatch.setattr("omnistage.runtime.zygote.ANSWER_WAIT_S", 0.2)
    runtime = started(stage(0, "counter", tmp_path))
    zygote = zygote_of(runtime)
    halt(zygote)
    with caplog.at_level(logging.WARNING):
        executed = killed(runtime, "counter")
    assert parent_of(executed) == os.getpid() and answers(runtime, "next")
    assert eventually(lambda: not alive(zygote))
    assert "stage counter: cannot be forked (the zygote does not answer), is started by exec" in caplog.text
    second = zygote_of(runtime, other_than=zygote)
    forked = killed(runtime, "counter")
    halt(second)
    os.kill(forked, signal.SIGKILL)
    assert eventually(lambda: "stage counter: ended, nobody saw how" in caplog.text)
    assert eventually(lambda: not alive(forked) and not alive(second))


def test_the_zygote_has_the_environment_of_most(tmp_path: Path) -> None:
    """Fault: a zygote that can fork none of the workers, or only the odd one out."""
    plans = plan_processes(
        [
            stage(index, name, tmp_path, env=env)
            for index, (name, env) in enumerate([("a", {"A": "1"}), ("b", {}), ("c", {})])
        ]
    )
    assert "A" not in shared_environment(plans) and shared_environment(plans[:2])["A"] == "1"


def test_a_library_that_starts_threads_is_not_forked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Fault: a worker that hangs in its first lock, because the thread that held it was not copied."""
    with caplog.at_level(logging.WARNING):
        runtime = started(stage(0, "counter", tmp_path, loader="tests.runtime.threaded:load"))
        assert eventually(lambda: "workers cannot be forked: 2 threads run after the imports" in caplog.text, 10.0)
    assert eventually(lambda: workers_of(os.getpid()) == [pids(runtime)["counter"]])
    assert parent_of(killed(runtime, "counter")) == os.getpid()
    time.sleep(0.3)
    assert len(workers_of(os.getpid())) == 1


def test_nothing_stays_of_it_and_it_sleeps(tmp_path: Path) -> None:
    """Fault: a zygote or one of its children outlives the runtime, descriptors that add up, a loop that polls."""
    started(stage(0, "counter", tmp_path)).close(0.0)
    descriptors = len(os.listdir("/proc/self/fd"))
    runtime = started(stage(0, "counter", tmp_path))
    zygote = zygote_of(runtime)
    for _ in range(2):
        killed(runtime, "counter")
    assert eventually(lambda: sleeps(zygote, 0.5), 10.0)
    family = [zygote, *pids(runtime).values()]
    runtime.close(0.0)
    assert not any(alive(pid) for pid in family) and len(os.listdir("/proc/self/fd")) == descriptors


SCRIPT = """
import sys, time
from pathlib import Path
from omnistage.runtime import zygote
from tests.runtime.harness import driver, eventually, stage

zygote.QUIET_S = 0.0
runtime = driver(stage(0, "counter", Path(sys.argv[1])), zygote=True)
runtime.start()
keeper = runtime._supervisor.zygote
assert eventually(lambda: keeper.pid is not None, 10.0)
print(keeper.pid, flush=True)
time.sleep(60)
"""


def test_a_zygote_ends_with_a_server_that_was_killed(tmp_path: Path) -> None:
    """Fault: an orphan that holds the memory of a library."""
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    with running(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE) as script:
        assert script.stdout is not None
        zygote = int(script.stdout.readline())
        assert alive(zygote)
    assert eventually(lambda: not alive(zygote), 2.0)
