"""What carries a worker's payloads, as its plan has it; and two addresses as two hosts, with real workers between them."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from omnistage.config.stage import OutputEdge
from omnistage.connectors.descriptors import open_lifeline
from omnistage.connectors.tcp import TcpConnector
from omnistage.runtime.driver import Driver
from omnistage.runtime.plan import plan_processes
from omnistage.stages.carriers import shm_connector, tcp_fetching
from omnistage.wire.plan import TcpPlan, WorkerPlan
from tests.runtime.harness import Caller, eventually, machine, pids, request, two_stages

PLAN = WorkerPlan(
    process="voice",
    replica=1,
    epoch=3,
    stages=(),
    address="nowhere",
    identity="x",
    life_line=0,
    arena_oversize_nbytes=2**20,
)


def test_shared_memory_is_made_as_the_plan_has_it() -> None:
    """Fault: a budget that the operator has given and nobody keeps."""
    ours, theirs = open_lifeline()
    connector = shm_connector(PLAN, theirs)
    assert connector.health()["capacity_nbytes"] == 2**20
    for line in (ours, theirs):
        line.close()


def test_tcp_is_there_where_an_edge_goes_by_it() -> None:
    """Fault: a port that is open although nobody reads there, or a connector under another name than its references'."""
    assert tcp_fetching(PLAN) is None
    tcp = TcpPlan(host="127.0.0.2", token="secret", capacity_nbytes=4096)
    plan = WorkerPlan.decode(msgspec.structs.replace(PLAN, tcp=tcp).encode())
    fetching = tcp_fetching(plan)
    assert fetching is not None
    connector = fetching(lambda: None)
    assert isinstance(connector, TcpConnector) and connector.health()["capacity_nbytes"] == 4096
    connector.close()


# ---- two hosts ----

made: list[Driver] = []


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    for runtime in made:
        runtime.close(0.0)
    made.clear()


def started(folder: Path, *, tcp_nbytes: int = 2**22, **second: Any) -> Driver:
    """counter on one host, voice on another."""
    counter, voice = two_stages(folder, **second)
    edge = OutputEdge(target=1, connector="tcp", item_nbytes=100_000)
    counter = msgspec.structs.replace(counter, host="127.0.0.2", outputs=(edge,))
    voice = msgspec.structs.replace(voice, host="127.0.0.3")
    plans = plan_processes((counter, voice), arena_nbytes=2**22)
    assert all(plan.tcp_nbytes is not None for plan in plans)
    driver = Driver(
        machine((counter, voice), restart_first_s=0.1), [replace(plan, tcp_nbytes=tcp_nbytes) for plan in plans]
    )
    made.append(driver)
    driver.start()
    assert driver.wait_ready(15.0).state == "ready"
    return driver


def listens_at(address: str) -> bool:
    """Somebody has a port open at an IPv4 address."""
    local = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(fields[1].startswith(local) and fields[3] == "0A" for fields in lines)


def test_payloads_travel_between_two_hosts(tmp_path: Path) -> None:
    """Fault: an item that stays parked although its bytes have come; items out of order; bytes that the owner keeps."""
    runtime = started(tmp_path)
    assert listens_at("127.0.0.2") and listens_at("127.0.0.3")
    callers = [Caller(runtime, request(str(number), items=6, samples=30_000 + number)) for number in range(4)]
    assert [caller.end().outcome for caller in callers] == ["finished"] * 4
    for number, caller in enumerate(callers):
        expected = np.tile(np.arange(30_000 + number, dtype=np.float32) * 2, 6)
        np.testing.assert_array_equal(caller.samples(1), expected)
    assert eventually(
        lambda: not any(gauges.get("arena_used_nbytes", 0) for gauges in runtime.status().gauges.values())
    )


def test_little_room_at_the_sender_locks_nobody_up(tmp_path: Path) -> None:
    """Fault: a release that comes to another connector than the one that was full."""
    runtime = started(tmp_path, tcp_nbytes=200_000)
    callers = [Caller(runtime, request(str(number), items=4, samples=40_000)) for number in range(6)]
    assert [caller.end().outcome for caller in callers] == ["finished"] * 6


def test_a_host_that_dies_takes_its_payloads_and_nobody_else(tmp_path: Path) -> None:
    """Fault: a request that waits for bytes of the dead until its own deadline, or a reader that is no good afterwards."""
    runtime = started(tmp_path, extras={"pause_s": 0.2})
    callers = [Caller(runtime, request(str(number), items=8, samples=30_000)) for number in range(3)]
    callers[0].next()
    began = time.monotonic()
    os.kill(pids(runtime)["counter"], signal.SIGKILL)
    for caller in callers:
        closed = caller.end()
        assert closed.outcome == "finished" or (closed.outcome == "failed" and closed.error is not None)
    assert time.monotonic() - began < 12.0
    assert Caller(runtime, request("next", items=3, samples=30_000)).end().outcome == "finished"
