"""What it costs to hand a payload to another process: wake-up, every byte read, release and the way back included."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from benchmarks.peers.lanes import QueueLane, ZmqLane, checksum
from benchmarks.rows import Benchmark, Row
from omnistage.connectors.descriptors import receive_descriptor, send_descriptor
from omnistage.connectors.memory import create_arena
from omnistage.connectors.shm import ShmConnector
from omnistage.core.payload import MultimodalPayload, PayloadRef
from omnistage.core.spec import TensorSpec

SIZES = {"8KiB": 8 * 2**10, "1MiB": 2**20, "8MiB": 8 * 2**20, "64MiB": 64 * 2**20}
PAIRS = 7
SECONDS_A_SIDE = 0.25
GOALS = {("8MiB", "mpqueue"): ">= 10", ("8MiB", "zmq"): ">= 2"}
ARENA_NBYTES = 512 * 2**20


class Lane(Protocol):
    """One way to bring an array to another process and hear its checksum."""

    version: str

    def send(self, array: np.ndarray[Any, Any]) -> int: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ArraySource:
    """A producer's array, as a stage hands it over."""

    array: np.ndarray[Any, Any]
    spec: TensorSpec

    def copy_to(self, view: memoryview) -> None:
        view[:] = self.array.data.cast("B")


class ArenaLane:
    """Ours: the shm connector, references over a socket, released when the reader has answered."""

    version = "omnistage"

    def __init__(self) -> None:
        arena = create_arena(ARENA_NBYTES)
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "benchmarks.handoff", str(theirs.fileno())]
        self._reader = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        send_descriptor(self._line, {"owner": "a/0"}, arena)
        self._connector = ShmConnector("a/0", 1, arena)
        os.close(arena)
        self._line.settimeout(60)

    def send(self, array: np.ndarray[Any, Any]) -> int:
        source = ArraySource(array, TensorSpec(array.dtype.name, array.shape))
        ref = self._connector.try_put(MultimodalPayload({"t": source}))
        assert ref is not None
        self._line.send(msgspec.msgpack.encode(ref))
        found = int(self._line.recv(64))
        self._connector.release(ref)
        return found

    def close(self) -> None:
        self._line.close()
        self._reader.wait(10)
        self._connector.close()


def read_arena(descriptor: int) -> None:
    """The other process: maps the arena, reads what it is told of, answers with the sum."""
    line = socket.socket(fileno=descriptor)
    connector, decoder = ShmConnector("b/0", 1), msgspec.msgpack.Decoder(PayloadRef)
    received = receive_descriptor(line)
    assert received is not None
    assert received[1] is not None
    connector.attach("a/0", 1, received[1])
    while data := line.recv(2**18):
        line.send(str(checksum(connector.get(decoder.decode(data)).numpy("t"))).encode())


def measure(name: str, nbytes: int, peers: dict[str, Callable[[], Lane]]) -> list[Row]:
    array = np.random.default_rng(0).random(nbytes // 4, np.float32)
    lanes: dict[str, Lane] = {"ours": ArenaLane(), **{peer: make() for peer, make in peers.items()}}
    try:
        for lane in lanes.values():  # warm, and equal before anything is timed
            for _ in range(3):
                assert lane.send(array) == checksum(array)
        times: dict[str, list[float]] = {peer: [] for peer in lanes}
        for _ in range(PAIRS):
            for peer, lane in lanes.items():
                times[peer].append(_seconds(lane, array))
    finally:
        for lane in lanes.values():
            lane.close()
    return [_row(name, peer, times, lanes[peer].version) for peer in peers]


def _seconds(lane: Lane, array: np.ndarray[Any, Any]) -> float:
    begun, count = time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < SECONDS_A_SIDE or count < 2:
        lane.send(array)
        count += 1
    return spent / count


def _row(size: str, peer: str, times: dict[str, list[float]], version: str) -> Row:
    ratios = [theirs / ours for ours, theirs in zip(times["ours"], times[peer], strict=True)]
    return Row(
        f"handoff_{size}_vs_{peer}",
        statistics.median(times["ours"]) * 1e6,
        GOALS.get((size, peer), ">= 0"),
        "us",
        f"{size} of float32 to another process, every byte read there, and back; {PAIRS} pairs",
        peer=statistics.median(times[peer]) * 1e6,
        peer_version=version,
        ratio=statistics.median(ratios),
    )


def handoffs() -> list[Row]:
    rows = []
    for name, nbytes in SIZES.items():
        rows += measure(name, nbytes, {"mpqueue": QueueLane, "zmq": ZmqLane})
    return rows


BENCHMARKS = (Benchmark(tuple(f"handoff_{size}_vs_{peer}" for size in SIZES for peer in ("mpqueue", "zmq")), handoffs),)

if __name__ == "__main__":
    read_arena(int(sys.argv[1]))
