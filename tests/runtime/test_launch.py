"""How one worker process is started: what it is told, what it inherits, how it ends."""

import json
import logging
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omnistage.connectors.descriptors import receive_descriptor, send_descriptor
from omnistage.connectors.memory import create_arena
from omnistage.core.errors import ConnectorError
from omnistage.runtime.launch import Launched, executor, launch_worker, spawn, worker_environment
from omnistage.runtime.plan import ProcessPlan, plan_processes
from omnistage.runtime.zygote import ZygoteProcess
from tests.runtime.harness import alive, eventually, stage

TOLD = "tests.runtime.told"


def process(folder: Path) -> ProcessPlan:
    return plan_processes((stage(0, "counter", folder, threads=3, env={"OWN": "yes", "MKL_NUM_THREADS": "1"}),))[0]


def zygote_of(plan: ProcessPlan) -> ZygoteProcess:
    one = ZygoteProcess(worker_environment(plan), TOLD, [plan])
    assert select.select([one.line], [], [], 20.0)[0]
    one.pump()
    assert one.ready is not None
    return one


def test_a_worker_logs_what_this_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a command that keeps to what went wrong shows the notes of its workers."""
    monkeypatch.delenv("OMNISTAGE_LOG_LEVEL", raising=False)
    monkeypatch.setattr(logging.getLogger("omnistage"), "level", logging.ERROR)
    logging.getLogger("omnistage").manager._clear_cache()  # type: ignore[attr-defined]
    assert worker_environment(process(tmp_path))["OMNISTAGE_LOG_LEVEL"] == "error"


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZygoteProcess]:
    one = zygote_of(process(tmp_path_factory.mktemp("zygote")))
    yield one
    one.end()
    one.close()


@pytest.fixture(params=["executed", "forked"])
def launched(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Launched]:
    """A process that runs `tests.runtime.told` in place of the worker, started in either way."""
    plan, arena = process(tmp_path), create_arena(4096)
    forks = request.param == "forked"
    start = request.getfixturevalue("zygote").fork if forks else executor(plan, TOLD)
    worker = launch_worker(plan, 1, 4, address="ipc://@nowhere", identity="counter/1/4/t", arena=arena, start=start)
    os.close(arena)
    yield worker
    worker.kill()
    worker.child.bury()
    worker.close()


def answer(worker: Launched) -> dict[str, Any]:
    assert select.select([worker.output], [], [], 10.0)[0]
    told: dict[str, Any] = json.loads(os.read(worker.output, 65536))
    return told


def test_a_worker_gets_its_plan_its_descriptors_and_its_environment(launched: Launched) -> None:
    """Fault: threads or allocator settings that come too late, a descriptor under another number, a stage's env that loses."""
    told = answer(launched)
    assert told["plan"]["replica"] == 1 and told["plan"]["epoch"] == 4 and told["plan"]["identity"] == "counter/1/4/t"
    assert told["arena_nbytes"] == 4096
    assert told["environment"] == {
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "ORT_DISABLE_TELEMETRY": "1",
        "MALLOC_MMAP_THRESHOLD_": "1073741824",
        "OWN": "yes",
        "HOME": os.environ.get("HOME"),
    }
    assert told["session"] == launched.pid != os.getsid(0)
    assert told["arguments"][0].endswith("told.py") and told["main"] == "__main__"
    kept = {told["plan"]["life_line"], told["plan"]["arena"], 0, 1, 2}
    assert set(told["descriptors"]) == kept, "a descriptor of the server or of the zygote has come along"
    assert not any(name.startswith("torch") or name == "__mp_main__" for name in told["modules"])


def test_the_life_line_carries_descriptors_and_tells_of_the_end(launched: Launched) -> None:
    """Fault: another process holds the far end, so a worker never learns that the server is gone."""
    answer(launched)
    arena = create_arena(8192)
    send_descriptor(launched.life_line, {"owner": "a/0", "epoch": 1}, arena)
    os.close(arena)
    assert answer(launched) == {"header": {"owner": "a/0", "epoch": 1}, "nbytes": 8192}
    launched.life_line.close()
    assert select.select([launched.pidfd], [], [], 10.0)[0]
    assert launched.child.bury() == 2


def test_a_killed_worker_is_seen_and_reaped(launched: Launched) -> None:
    """Fault: zombies, helpers of the dead that live on, or a kill that meets a process that took over the number."""
    helper = answer(launched)["helper"]
    launched.kill()
    assert select.select([launched.pidfd], [], [], 10.0)[0]
    assert launched.child.bury() == -signal.SIGKILL
    launched.kill()
    assert not alive(launched.pid) and eventually(lambda: not alive(helper))


def test_whom_nobody_saw_die_is_buried_all_the_same(tmp_path: Path) -> None:
    """Fault: helpers of the dead live on, or a wait without end, where the zygote had died before its child."""
    plan, arena = process(tmp_path), create_arena(4096)
    one = zygote_of(plan)
    worker = launch_worker(plan, 1, 4, address="ipc://@nowhere", identity="i", arena=arena, start=one.fork)
    os.close(arena)
    helper = answer(worker)["helper"]
    one.end()
    assert alive(worker.pid) and one.gone
    worker.kill()
    assert worker.child.bury() is None
    assert not alive(worker.pid) and eventually(lambda: not alive(helper))
    worker.close()
    one.close()


def test_a_worker_that_is_gone_is_told_as_an_error_of_the_line(launched: Launched) -> None:
    """Fault: SIGPIPE, or silence."""
    launched.kill()
    launched.child.bury()
    with pytest.raises(BrokenPipeError):
        send_descriptor(launched.life_line, {"owner": "a/0", "epoch": 1})
    assert receive_descriptor(launched.life_line) is None


def test_a_plan_that_finds_no_memory_is_a_start_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a full /dev/shm, and the runtime ends because it could not make a zygote, which it can do without."""

    def full(nbytes: int, what: str) -> int:
        raise ConnectorError(f"{what} of {nbytes} bytes cannot be allocated")

    monkeypatch.setattr("omnistage.runtime.launch.create_memory", full)
    with pytest.raises(OSError, match="a plan of 4 bytes cannot be allocated"):
        spawn(TOLD, b"plan", {}, 2, ())
