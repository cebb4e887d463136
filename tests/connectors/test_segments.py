"""Payloads in memory of their own: when they get it, what it is counted against, when it goes."""

from __future__ import annotations

import gc
import mmap
import os
import threading
from pathlib import Path

import pytest

from omnistage.config.stage import arena_nbytes
from omnistage.connectors.descriptors import open_lifeline, receive_descriptor
from omnistage.connectors.memory import create_arena
from omnistage.connectors.segments import MAX_SEGMENTS, SEGMENT, memory_of, publisher, segment_of
from omnistage.connectors.shm import ShmConnector
from omnistage.core.errors import ConnectorError, PayloadTooLargeError
from omnistage.core.payload import PayloadRef
from tests.connectors.pairs import EDGES, big

MIB = 2**20


class Published:
    """A server that keeps what it is sent, and a reader of it; `takes` False: its line is full."""

    def __init__(self) -> None:
        self.reader = ShmConnector("b/0", 1)
        self.descriptors: dict[int, int] = {}
        self.takes = True

    def __call__(self, key: int, descriptor: int) -> bool:
        if self.takes:
            self.descriptors[key] = os.dup(descriptor)
        return self.takes

    def pass_on(self, ref: PayloadRef) -> None:
        self.reader.attach(ref.owner, ref.epoch, self.descriptors[ref.key], ref.key)


@pytest.fixture
def server() -> Published:
    return Published()


@pytest.fixture
def owner(server: Published) -> ShmConnector:
    """With an arena of 4 MiB, a quarter of it for each edge's oldest request, and 6 MiB for what is too large."""
    descriptor = create_arena(arena_nbytes(4 * MIB, len(EDGES)))
    made = ShmConnector("a/0", 1, descriptor, edges=EDGES, oversize_nbytes=6 * MIB, publish=server, poison=True)
    os.close(descriptor)
    return made


def put(owner: ShmConnector, nbytes: int, fill: int = 7, oldest_of: tuple[int, int] | None = None) -> PayloadRef:
    ref = owner.try_put(big(nbytes, fill), oldest_of=oldest_of)
    assert ref is not None
    return ref


def test_more_than_a_quarter_of_the_arena_gets_memory_of_its_own(owner: ShmConnector, server: Published) -> None:
    """Fault: a large picture fails its request although there is memory, or an ordinary payload costs a descriptor."""
    assert segment_of(put(owner, MIB)) is None
    large = put(owner, MIB + 1, 3)
    assert (large.location, segment_of(large)) == (SEGMENT, large.key)
    assert memory_of(large) == ("a/0", 1, large.key)
    assert not server.reader.can_read(large)
    with pytest.raises(ConnectorError, match="not attached"):
        server.reader.get(large)
    server.pass_on(large)
    assert server.reader.can_read(large)
    assert server.reader.get(large).numpy("t0").tobytes() == b"\3" * (MIB + 1)


def test_above_the_budget_is_an_error_that_names_sizes_and_budget(owner: ShmConnector) -> None:
    """Fault: a payload that can never be sent waits, or an error that does not say which key to raise."""
    with pytest.raises(PayloadTooLargeError) as caught:
        owner.try_put(big(6 * MIB + 1))
    for figure in (str(6 * MIB + 64), str(MIB), str(6 * MIB), "arena_oversize_nbytes"):
        assert figure in caught.value.message
    put(owner, 6 * MIB)


def test_the_budget_comes_back_with_the_release(owner: ShmConnector, server: Published) -> None:
    """Fault: after a few large payloads every other one is refused."""
    for _ in range(4):
        refs = [put(owner, 3 * MIB), put(owner, 3 * MIB)]
        assert owner.try_put(big(3 * MIB)) is None
        for ref in refs:
            server.pass_on(ref)
            view = server.reader.get(ref).numpy("t0")
            owner.release(ref)
            owner.release(ref)
            assert view.min() == 255  # poisoned, as a block is
    assert owner.health()["used_nbytes"] == owner.health()["segments"] == 0
    assert owner.health()["stale_releases"] == 8


def test_the_oldest_request_finds_memory_when_arena_and_block_are_taken(owner: ShmConnector) -> None:
    """Fault: it waits although there is memory that is nobody's."""
    while owner.try_put(big(MIB)) is not None:
        pass
    assert segment_of(put(owner, MIB, oldest_of=EDGES[0])) is None
    assert segment_of(put(owner, MIB, oldest_of=EDGES[0])) is not None
    for _ in range(5):
        put(owner, MIB, oldest_of=EDGES[0])
    assert owner.try_put(big(MIB), oldest_of=EDGES[0]) is None
    assert owner.try_put(big(MIB)) is None


def test_the_oldest_large_payload_of_an_edge_goes_beyond_the_budget(owner: ShmConnector) -> None:
    """Fault: the oldest waits for memory that only younger ones could free, which wait for the oldest."""
    put(owner, 6 * MIB)
    assert owner.try_put(big(2 * MIB)) is None
    beyond = put(owner, 2 * MIB, oldest_of=EDGES[0])
    assert owner.try_put(big(2 * MIB), oldest_of=EDGES[0]) is None
    put(owner, 2 * MIB, oldest_of=EDGES[1])
    owner.release(beyond)
    put(owner, 2 * MIB, oldest_of=EDGES[0])


def test_a_line_that_is_full_is_no_room_and_keeps_nothing(owner: ShmConnector, server: Published) -> None:
    """Fault: a payload whose descriptor was never sent is reported, or its bytes stay taken."""
    server.takes = False
    gc.collect()  # what other tests left must not close meanwhile
    descriptors = len(os.listdir("/proc/self/fd"))
    assert owner.try_put(big(2 * MIB)) is None
    assert owner.health()["used_nbytes"] == 0
    assert len(os.listdir("/proc/self/fd")) == descriptors
    server.takes = True
    put(owner, 2 * MIB)


def test_memory_that_the_machine_lacks_fails_the_payload_alone(
    owner: ShmConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: bytes of the budget are lost with every failed attempt."""

    def nothing(nbytes: int, what: str) -> int:
        raise ConnectorError(f"{what} of {nbytes} bytes cannot be allocated")

    monkeypatch.setattr("omnistage.connectors.segments.create_memory", nothing)
    with pytest.raises(ConnectorError, match="a segment of 2097152 bytes"):
        owner.try_put(big(2 * MIB))
    monkeypatch.undo()
    put(owner, 6 * MIB)


def test_a_segment_is_sealed(owner: ShmConnector, server: Published) -> None:
    """Fault: a reader's stray write changes what another reader sees."""
    ref = put(owner, 2 * MIB)
    with pytest.raises(PermissionError):
        mmap.mmap(server.descriptors[ref.key], 2 * MIB)


@pytest.mark.parametrize("end", ["release", "close"])
def test_the_memory_goes_with_the_last_that_holds_it(owner: ShmConnector, server: Published, end: str) -> None:
    """Fault: memory of large payloads adds up, also after their maker has died."""
    ref = put(owner, 2 * MIB)
    server.pass_on(ref)
    os.close(server.descriptors[ref.key])
    inode = segments_here()
    assert len(inode) == 2  # the owner's and the reader's mapping
    owner.close() if end == "close" else owner.release(ref)
    assert len(segments_here()) == 1
    server.reader.detach(ref.owner, ref.epoch, ref.key)
    assert segments_here() == []


def segments_here() -> list[str]:
    """Mappings of 2 MiB of shared memory in this process."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if _is_segment(line)]


def _is_segment(line: str) -> bool:
    first, last = (int(end, 16) for end in line.split()[0].split("-"))
    return "memfd:omnistage" in line and last - first == 2 * MIB


def test_the_number_of_segments_is_bounded(server: Published) -> None:
    """Fault: a process runs out of descriptors, which others in it need."""
    owner = ShmConnector("a/0", 1, oversize_nbytes=2**30, publish=lambda key, descriptor: True)
    refs = [put(owner, 2**17) for _ in range(MAX_SEGMENTS)]
    assert owner.try_put(big(2**17)) is None
    owner.release(refs[0])
    put(owner, 2**17)
    owner.close()


def test_a_descriptor_goes_up_the_line_and_never_waits(owner: ShmConnector) -> None:
    """Fault: a step stands still because the server is busy."""
    ours, theirs = open_lifeline()
    publish = publisher(theirs)
    reading, writing = os.pipe()
    assert publish(3, reading)
    received = receive_descriptor(ours)
    assert received is not None and received[0] == {"key": 3} and received[1] is not None
    os.close(received[1])
    full = threading.Event()

    def fill() -> None:
        while publish(4, reading):
            pass
        full.set()

    threading.Thread(target=fill, daemon=True).start()
    assert full.wait(5.0)
    ours.close()
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        publish(5, reading)
    for descriptor in (reading, writing):
        os.close(descriptor)
    theirs.close()
