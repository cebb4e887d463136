"""Descriptors on their way between workers: in pieces, and with real workers whose payloads are too large for an arena."""

import errno
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnistage.config.placement import name_connectors
from omnistage.connectors.descriptors import open_lifeline, receive_descriptor
from omnistage.connectors.segments import publisher
from omnistage.connectors.shm import ShmConnector
from omnistage.core.errors import ConnectorError
from omnistage.core.payload import MultimodalPayload, PayloadRef, Tensor
from omnistage.runtime.arenas import ArenaCache
from omnistage.runtime.driver import Driver
from omnistage.runtime.handover import HandOver
from omnistage.runtime.plan import plan_processes
from tests.runtime.harness import Caller, eventually, machine, pids, request, two_stages

WRITER, READER = ("counter/0", 1), ("voice/0", 1)
LARGE = 300_000


class World:
    """A writer and a reader at the worker's ends of their life lines; `muted` is what the hand-over has complained of."""

    def __init__(self, folder: Path) -> None:
        counter, voice = plan_processes(two_stages(folder))
        self.arenas = ArenaCache()
        self.muted: list[tuple[tuple[str, int], str]] = []
        self.handover = HandOver(self.arenas, lambda worker, why: self.muted.append((worker, why)))
        self._servers: list[socket.socket] = []
        arena = self.arenas.create("counter", *WRITER, 2**20)
        publish = publisher(self.join(counter, WRITER, arena))
        self.writer = ShmConnector(*WRITER, arena, oversize_nbytes=2**20, publish=publish)
        self.reader = ShmConnector(*READER)
        self._line = self.join(voice, READER, self.arenas.create("voice", *READER, 2**20))

    def join(self, plan: Any, worker: tuple[str, int], arena: int) -> socket.socket:
        ours, theirs = open_lifeline()
        for line in (ours, theirs):
            line.setblocking(False)
        self._servers += [ours, theirs]
        self.handover.join(plan, worker, ours, arena)
        return theirs

    def emit(self, fill: int = 1) -> PayloadRef:
        ref = self.writer.try_put(MultimodalPayload({"t": Tensor.of(np.full(LARGE, fill, np.uint8))}))
        assert ref is not None and ref.location == "segment"
        return ref

    def read_line(self) -> list[dict[str, Any]]:
        """Does what a worker does with its life line; the headers that have come."""
        headers: list[dict[str, Any]] = []
        while True:
            try:
                received = receive_descriptor(self._line)
            except BlockingIOError:
                return headers
            assert received is not None
            header, descriptor = received
            headers.append(header)
            place = header["owner"], header["epoch"]
            if descriptor is None:
                self.reader.detach(*place, key=header.get("key"))
            else:
                self.reader.attach(*place, descriptor, key=header.get("key"))
                os.close(descriptor)

    def close(self) -> None:
        self.arenas.close()
        for line in self._servers:
            line.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_a_segment_goes_to_whoever_is_told_to_read_it_once(world: World) -> None:
    """Fault: an item whose memory never comes; a descriptor for every worker there is, or for every item that is read twice."""
    ref = world.emit()
    world.handover.reported([ref])
    assert world.arenas.read(ref).numpy("t").tolist() == [1] * LARGE
    assert [header.get("key") for header in world.read_line()] == [None]
    world.handover.bring(READER, ref)
    world.handover.bring(READER, ref)
    assert [header["key"] for header in world.read_line()] == [ref.key]
    assert world.reader.get(ref).numpy("t").tolist() == [1] * LARGE


def test_a_released_segment_is_forgotten_by_everybody(world: World) -> None:
    """Fault: a reader or the server keeps the memory of every large payload there ever was."""
    ref = world.emit()
    world.handover.reported([ref])
    world.handover.bring(READER, ref)
    world.read_line()
    descriptors = len(os.listdir("/proc/self/fd"))
    world.handover.released(ref)
    world.writer.release(ref)
    assert [(header["key"], header["gone"]) for header in world.read_line()] == [(ref.key, True)]
    assert not world.reader.can_read(ref) and world.arenas.num_segments == 0
    assert len(os.listdir("/proc/self/fd")) == descriptors - 3
    assert world.writer.health()["used_nbytes"] == 0


def test_a_segment_outlives_its_maker_until_it_is_released(world: World) -> None:
    """Fault: what a dead worker had emitted is lost, or what nobody has heard of is kept for ever."""
    reported, unheard_of = world.emit(1), world.emit(2)
    world.handover.reported([reported])
    assert world.arenas.num_segments == 2
    world.handover.leave(WRITER)
    assert world.arenas.num_segments == 1 and not world.arenas.has_segment(unheard_of)
    world.handover.bring(READER, reported)
    world.read_line()
    assert world.reader.get(reported).numpy("t").tolist() == [1] * LARGE
    world.handover.released(reported)
    assert world.arenas.num_segments == 0
    with pytest.raises(ConnectorError, match="not attached"):
        world.arenas.read(reported)


def test_a_worker_that_takes_no_descriptors_is_named(world: World) -> None:
    """Fault: a broken line ends the runtime, or is not noticed."""
    ref = world.emit()
    world.handover.reported([ref])
    world._line.close()
    world.handover.bring(READER, ref)
    [(who, why)] = world.muted
    assert who == READER and why.startswith("takes no descriptors any more (")


# ---- with real workers ----

made: list[Driver] = []


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    for runtime in made:
        runtime.close(0.0)
    made.clear()


def started(folder: Path, oversize_nbytes: int, **second: Any) -> Driver:
    """Two stages with arenas of 1 MiB."""
    stages = name_connectors(two_stages(folder, **second), inline=False)
    plans = plan_processes(stages, arena_nbytes=2**20)
    driver = Driver(
        machine(stages, restart_first_s=0.1),
        [replace(plan, arena_oversize_nbytes=oversize_nbytes) for plan in plans],
    )
    made.append(driver)
    driver.start()
    assert driver.wait_ready(15.0).state == "ready"
    return driver


def test_large_payloads_travel_between_workers_and_to_the_caller(tmp_path: Path) -> None:
    """Fault: a picture larger than a quarter of the arena fails its request, or its memory is never given back."""
    runtime = started(tmp_path, 2**22)
    callers = [Caller(runtime, request(str(number), items=4, samples=200_000)) for number in range(3)]
    assert [caller.end().outcome for caller in callers] == ["finished"] * 3
    for caller in callers:
        np.testing.assert_array_equal(caller.samples(1), np.tile(np.arange(200_000, dtype=np.float32) * 2, 4))
    assert eventually(lambda: runtime._supervisor.arenas.num_segments == 0)
    assert eventually(
        lambda: not any(gauges.get("arena_used_nbytes", 0) for gauges in runtime.status().gauges.values())
    )


def test_everything_works_without_memory_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: an old kernel, or a sandbox, cannot serve; names that stay in /dev/shm."""
    monkeypatch.setenv("OMNISTAGE_NAMED_MEMORY", "1")
    monkeypatch.delattr(os, "memfd_create")
    before = set(os.listdir("/dev/shm"))
    runtime = started(tmp_path, 2**22)
    arena = Path(f"/proc/self/fd/{next(iter(runtime._supervisor.arenas._arenas.values())).descriptor}").readlink()
    assert str(arena).startswith("/dev/shm/omnistage-")
    for samples in (30_000, 200_000):
        assert Caller(runtime, request(str(samples), items=3, samples=samples)).end().outcome == "finished"
    os.kill(pids(runtime)["counter"], signal.SIGKILL)
    assert Caller(runtime, request("next", items=1, samples=200_000)).end().outcome in ("finished", "failed")
    runtime.close(0.0)
    assert set(os.listdir("/dev/shm")) == before


def test_a_full_shared_folder_is_told_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a worker that dies of a bus error at its first payload, or a start that says nothing."""

    def full(descriptor: int, offset: int, nbytes: int) -> None:
        if nbytes >= 2**20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("OMNISTAGE_NAMED_MEMORY", "1")
    monkeypatch.setattr(os, "posix_fallocate", full)
    stages = name_connectors(two_stages(tmp_path), inline=False)
    made.append(Driver(machine(stages, strikes=1), plan_processes(stages, arena_nbytes=2**20)))
    made[-1].start()
    assert (
        "an arena of 1048576 bytes cannot be allocated in /dev/shm: No space left" in made[-1].wait_ready(10.0).trouble
    )


def test_above_the_budget_the_request_fails_and_says_why(tmp_path: Path) -> None:
    """Fault: a payload that can never be sent waits for ever."""
    runtime = started(tmp_path, 2**20)
    closed = Caller(runtime, request("large", items=1, samples=300_000)).end()
    assert closed.error is not None and closed.error.code == "payload_too_large"
    assert "1200000 bytes" in closed.error.message and "1048576 bytes" in closed.error.message
    assert Caller(runtime, request("next", items=1, samples=200_000)).end().outcome == "finished"


def test_segments_of_a_killed_worker_are_given_back(tmp_path: Path) -> None:
    """Fault: memory of the dead that nobody can free any more."""
    runtime = started(tmp_path, 2**22, extras={"pause_s": 0.3})
    caller = Caller(runtime, request("held", items=3, samples=200_000))
    assert eventually(lambda: runtime._supervisor.arenas.num_segments > 0)
    os.kill(pids(runtime)["counter"], signal.SIGKILL)
    assert caller.end().outcome in ("finished", "failed")
    assert eventually(lambda: runtime._supervisor.arenas.num_segments == 0)
    assert Caller(runtime, request("next", items=2, samples=200_000)).end().outcome == "finished"
