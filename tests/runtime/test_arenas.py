"""The server's side of shared memory: reading, and keeping the arenas of the dead."""

import os
from collections.abc import Iterator

import numpy as np
import pytest

from omnistage.connectors.shm import ShmConnector
from omnistage.core.errors import ConnectorError
from omnistage.core.payload import MultimodalPayload, PayloadRef, Tensor
from omnistage.runtime.arenas import ArenaCache

SAMPLES = np.arange(40000, dtype=np.float32)


@pytest.fixture
def arenas() -> Iterator[ArenaCache]:
    cache = ArenaCache()
    yield cache
    cache.close()


def put(connector: ShmConnector, samples: np.ndarray = SAMPLES) -> PayloadRef:
    ref = connector.try_put(MultimodalPayload({"samples": Tensor.of(samples)}))
    assert ref is not None
    return ref


def test_an_arena_of_the_dead_stays_until_its_last_reference_is_released(arenas: ArenaCache) -> None:
    """Fault: what a dead worker had emitted cannot be read any more, or its memory is never given back."""
    worker = ShmConnector("voice/0", 3, arenas.create("voice", "voice/0", 3, 2**21))
    first, second = put(worker), put(worker)
    for ref in (first, second):
        arenas.reported(ref)
    assert not arenas.died("voice/0", 3)
    assert not arenas.released(first)
    np.testing.assert_array_equal(arenas.read(second).numpy("samples"), SAMPLES)
    assert arenas.released(second)
    assert len(arenas) == 0
    with pytest.raises(ConnectorError):
        arenas.read(second)


def test_an_arena_nobody_refers_to_goes_with_its_owner(arenas: ArenaCache) -> None:
    """Fault: references of the living that were released, or that travel inline, keep an arena."""
    worker = ShmConnector("voice/0", 1, arenas.create("voice", "voice/0", 1, 2**21))
    ref, small = put(worker), put(worker, SAMPLES[:4])
    arenas.reported(ref)
    arenas.reported(small)
    assert not arenas.released(ref)
    assert arenas.died("voice/0", 1)
    assert not arenas.died("voice/0", 1) and not arenas.released(ref)
    np.testing.assert_array_equal(arenas.read(small).numpy("samples"), SAMPLES[:4])


def test_a_payload_that_never_leaves_its_process_is_in_no_arena(arenas: ArenaCache) -> None:
    """Fault: its release is taken for that of the payload of the same number, and an arena goes that is still read."""
    worker = ShmConnector("voice/0", 1, arenas.create("voice", "voice/0", 1, 2**21))
    ref = put(worker)
    arenas.reported(ref)
    assert not arenas.died("voice/0", 1)
    assert not arenas.released(PayloadRef("inproc", "voice/0", 1, ref.key))
    assert arenas.released(ref)


def test_incarnations_have_arenas_of_their_own(arenas: ArenaCache) -> None:
    """Fault: a reference into the arena of an earlier life is read from the present one."""
    before = ShmConnector("voice/0", 1, arenas.create("voice", "voice/0", 1, 2**21))
    now = ShmConnector("voice/0", 2, arenas.create("voice", "voice/0", 2, 2**21))
    old, new = put(before), put(now, SAMPLES + 1)
    np.testing.assert_array_equal(arenas.read(old).numpy("samples"), SAMPLES)
    np.testing.assert_array_equal(arenas.read(new).numpy("samples"), SAMPLES + 1)
    assert [(owner, epoch) for owner, epoch, _ in arenas.of_processes({"voice"})] == [("voice/0", 1), ("voice/0", 2)]
    assert arenas.of_processes({"counter"}) == []


def test_closing_gives_every_descriptor_back() -> None:
    """Fault: descriptors that add up with every engine in a program."""
    before = len(os.listdir("/proc/self/fd"))
    cache = ArenaCache()
    for epoch in range(3):
        cache.create("voice", "voice/0", epoch, 2**16)
    cache.close()
    cache.close()
    assert len(os.listdir("/proc/self/fd")) == before
