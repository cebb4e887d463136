"""From one stage to the next: how long an item takes from the step that made it to the engine that is fed with it.

The items of a request to the pipeline `relay` (benchmarks.family), which says for each how long its way was: out of the sender's
process, through the driver, into the receiver's. One question at a time, its items so far apart that none waits for another: a
millisecond, because after longer pauses the figure says how deeply the processors of the machine sleep (a bare pair of sockets
takes two to three times as long after four of them).
Under load the server streams to `STREAMS` other clients at the same time, sound in base64: as fast as it can, or (`beside_speech`)
as fast as each of them is spoken, a fifth of a second at a time and all at the same moment. The peer there is the least that any
way through a third process takes beside the same load (benchmarks.peers.bare): on a machine with fewer processors than the load
keeps busy it is far from nothing.
`DEPLOYMENTS` are the ways to run the driver; the row of a deployment other than the default ends in its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import statistics
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from benchmarks.clients import Question, StreamState, loaded, stream
from benchmarks.peers import bare, segments
from benchmarks.rows import Benchmark, Row
from benchmarks.servers import OWN_COMMAND, Server, serving

DEPLOYMENTS: Mapping[str, tuple[str, ...]] = {"": (), "thread": ("--no-engine-process",)}
PAIRS = 5
ITEMS = 300
PAUSE_S = 0.001
SIZES = {"8KiB": 8 * 2**10, "256KiB": 256 * 2**10}
GOALS = {"8KiB": 400}
STREAMS = 64
LOADED_ITEMS = 2000
LOADED_PAUSE_S = 0.005
LOADS: Mapping[str, Mapping[str, float]] = {
    "under_load": {"chunks": 50, "samples": 24_000},
    "beside_speech": {"chunks": 250, "samples": 4_800, "pause_s": 0.2},
}


def hops_us(server: Server, items: int, pause_s: float, nbytes: int) -> list[float]:
    """The ways of `items` items through the server."""
    question = Question(server.port, "relay", {"items": items, "pause_s": pause_s, "nbytes": nbytes})
    said = asyncio.run(stream(question, StreamState())).text.split()
    assert len(said) == items, f"{len(said)} of {items} items came"
    return [int(word) / 1e3 for word in said]


@contextlib.contextmanager
def relaying(flags: tuple[str, ...]) -> Iterator[Server]:
    with serving("relay", "--max-num-seqs", str(STREAMS + 1), *flags, command=OWN_COMMAND) as server:
        server.wait((200,), pause_s=0.05)
        hops_us(server, 50, PAUSE_S, SIZES["8KiB"])  # warm
        yield server


def stage_hops() -> list[Row]:
    peer = segments.Hops()
    try:
        with relaying(()) as server:
            return [_pairs(server, peer, size, nbytes) for size, nbytes in SIZES.items()]
    finally:
        peer.close()


def _pairs(server: Server, peer: segments.Hops, size: str, nbytes: int) -> Row:
    ours, theirs = [], []
    for _ in range(PAIRS):
        ours.append(statistics.median(hops_us(server, ITEMS, PAUSE_S, nbytes)))
        theirs.append(statistics.median(peer.measure(ITEMS, PAUSE_S, nbytes)) / 1e3)
    ratio = statistics.median(other / mine for mine, other in zip(ours, theirs, strict=True))
    bound = f", and p50 at most {GOALS[size]}" if size in GOALS else ""
    return Row(
        f"stage_hop_{size}_us",
        statistics.median(ours),
        ">= 3" if size in GOALS else ">= 0",
        "us",
        f"a step's result in one worker to `feed` in the next, through the driver, p50 of {ITEMS} items{bound}; {PAIRS} pairs",
        peer=statistics.median(theirs),
        peer_version=segments.version,
        ratio=ratio,
        at_most=GOALS.get(size),
    )


def loaded_hops(load_name: str, deployment: str) -> list[Row]:
    floor = bare.Relay()
    try:
        with relaying(DEPLOYMENTS[deployment]) as server:
            before = server.cpu_s()
            with loaded(Question(server.port, "relay", LOADS[load_name], ("audio",)), STREAMS) as load:
                hops = hops_us(server, LOADED_ITEMS, LOADED_PAUSE_S, SIZES["8KiB"])
                cpu_s = server.cpu_s() - before
                least = np.array(floor.measure(LOADED_ITEMS, LOADED_PAUSE_S)) / 1e3
    finally:
        floor.close()
    p50, p99 = np.percentile(hops, [50, 99])
    rate = f"{load.figures['events_per_s']:.0f} events and {load.figures['nbytes_per_s'] / 2**20:.0f} MiB a second"
    return [
        Row(
            _loaded_name(load_name, deployment),
            float(p99),
            "<= 2000",
            "us",
            f"p99 of {LOADED_ITEMS} items of 8 KiB (p50 {p50:.0f} us) beside {STREAMS} streams of sound: {rate}",
            peer=float(np.percentile(least, 99)),
            peer_version=bare.version,
            cpu_s_ours=cpu_s,
        )
    ]


def _loaded_name(load_name: str, deployment: str) -> str:
    return "_".join(filter(None, ("hop_p99_us", load_name, deployment)))


def _under_load(load_name: str, deployment: str) -> Callable[[], list[Row]]:
    return functools.partial(loaded_hops, load_name, deployment)


BENCHMARKS = (
    Benchmark(tuple(f"stage_hop_{size}_us" for size in SIZES), stage_hops),
    *(
        Benchmark((_loaded_name(load_name, name),), _under_load(load_name, name))
        for load_name in LOADS
        for name in DEPLOYMENTS
    ),
)
