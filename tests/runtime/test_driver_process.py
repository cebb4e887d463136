"""A driver process from its server's side: its plan, its start, the workers that are held for it."""

import gc
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omnistage.orchestrator.plan import Limits
from omnistage.runtime.driver_process import DeathsState, DriverPlan, WorkersState, launch_driver
from omnistage.runtime.plan import plan_processes
from tests.runtime.harness import machine, two_stages


def plan_of(folder: Path) -> DriverPlan:
    stages = two_stages(folder, env={"A": "1"}, num_replicas=2)
    return DriverPlan(
        config=machine(stages, strikes=7).config, processes=plan_processes(stages), record_events="/x", observed=True
    )


def open_files() -> int:
    gc.collect()  # what other tests have left to the collector is theirs
    return len(os.listdir("/proc/self/fd"))


def test_a_plan_travels_as_it_is(tmp_path: Path) -> None:
    """Fault: a driver process that runs another configuration than the one that was resolved."""
    plan = plan_of(tmp_path)
    assert DriverPlan.decode(plan.encode()) == plan


def test_a_driver_that_ends_is_seen_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: an exit code or an end of the stream that is lost; what it is told of descriptors and of the log is not so."""
    (tmp_path / "told.py").write_text(
        "import os, sys\n"
        "from omnistage.runtime.driver_process import DriverPlan\n"
        "plan = DriverPlan.decode(sys.stdin.buffer.read())\n"
        "os.fstat(plan.life_line)\n"
        "os.write(plan.channel, plan.log_level.encode())\n"
        "sys.exit(3)\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(logging.getLogger("omnistage"), "level", logging.ERROR)
    logging.getLogger("omnistage").manager._clear_cache()  # type: ignore[attr-defined]
    descriptors = open_files()
    driver = launch_driver(plan_of(tmp_path), 0.0, module="told")
    assert driver.wait() == 3
    assert os.read(driver.stream.fileno(), 10) == b"error"
    assert driver.stream.receive() == [] and driver.stream.ended
    assert not driver.adopt()
    driver.close()
    assert open_files() == descriptors


def test_a_start_that_fails_leaves_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: every failed start costs a few descriptors, until there are none."""

    def no_processes(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    descriptors = open_files()
    monkeypatch.setattr(subprocess, "Popen", no_processes)
    with pytest.raises(OSError, match="no more processes"):
        launch_driver(plan_of(tmp_path), 0.0)
    assert open_files() == descriptors


def test_drivers_that_die_often_are_started_later_and_then_not_any_more() -> None:
    """Fault: a crash loop that takes a core for ever, or deaths of last week that count."""
    deaths = DeathsState(Limits(restart_first_s=1.0, restart_most_s=1.5, strikes=4, strike_window_s=60.0))
    assert [deaths.pause_s(at) for at in (0.0, 100.0, 101.0, 102.0)] == [1.0, 1.0, 1.5, 1.5]
    assert deaths.pause_s(103.0) is None and str(deaths) == "4 deaths in 60 s"


def test_what_is_held_of_workers_lets_them_be_ended_and_forgotten() -> None:
    """Fault: a worker that is left, pidfds that add up, a wait that is longer than its deadline."""
    descriptors = open_files()
    sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    workers, left = WorkersState(), WorkersState()
    for sleeper in sleepers[:2]:
        workers.add(os.pidfd_open(sleeper.pid))
    left.add(os.pidfd_open(sleepers[2].pid))
    sleepers[0].kill()
    sleepers[0].wait()
    workers.forget_ended(0.0)
    assert len(workers) == 1
    left.take_over(workers)
    assert (len(workers), len(left)) == (0, 2)
    began = time.monotonic()
    left.forget_ended(0.05)
    assert 0.04 < time.monotonic() - began < 2.0 and len(left) == 2
    left.kill()
    left.forget_ended(5.0)
    assert len(left) == 0
    assert [sleeper.wait() for sleeper in sleepers] == [-signal.SIGKILL] * 3
    assert open_files() == descriptors
