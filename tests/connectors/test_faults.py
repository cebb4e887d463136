"""What every connector does when something breaks: threads that race, ends that close, references that lie."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnistage.core.errors import ConnectorError
from omnistage.core.payload import PayloadRef, TensorPlace
from omnistage.core.spec import TensorSpec
from tests.connectors.pairs import CAPACITY, CONNECTORS, EDGES, Pair, big, payload_of

NBYTES = 200_000


@pytest.fixture(params=sorted(CONNECTORS))
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = CONNECTORS[request.param]()
    yield made
    made.close()


def put(pair: Pair, fill: int = 7) -> PayloadRef:
    ref = pair.sender.try_put(big(NBYTES, fill))
    assert ref is not None
    return ref


def is_whole(pair: Pair, ref: PayloadRef, fill: int) -> bool:
    array = pair.receiver.get(ref).numpy("t0")
    return array.size == NBYTES and bool((array == fill).all())


def test_many_threads_put_read_and_release_at_once(pair: Pair) -> None:
    """Fault: two payloads in one block, or a block that is lost in a race."""
    started = threading.Barrier(6)

    def work(number: int) -> int:
        started.wait()
        refused, done = 0, 0
        while done < 25 and refused < 10_000:
            fill = (number * 40 + done) % 255
            ref = pair.sender.try_put(big(NBYTES, fill), oldest_of=EDGES[number % 2])
            if ref is None:
                refused += 1
                time.sleep(0.001)
                continue
            assert is_whole(pair, ref, fill)
            pair.sender.release(ref)
            done += 1
        return done

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6))) == [25] * 6
    assert pair.sender.health()["used_nbytes"] == 0
    assert pair.sender.health()["stale_releases"] == 0


def test_many_releases_of_one_payload_free_it_once(pair: Pair) -> None:
    """Fault: a race of releases frees the block of the payload that came after."""
    refs = [put(pair, fill) for fill in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(pair.sender.release, refs * 4))
    health = pair.sender.health()
    assert (health["used_nbytes"], health["stale_releases"]) == (0, 24)


def test_a_reader_that_goes_takes_nothing_with_it(pair: Pair) -> None:
    """Fault: a payload that is held for a dead reader, or that is lost to the other ones."""
    if pair.sender is pair.receiver:
        pytest.skip("one connector is both ends")
    ref = put(pair)
    assert is_whole(pair, ref, 7)
    pair.receiver.close()
    assert put(pair, 8) is not None
    pair.sender.release(ref)
    assert pair.sender.health()["used_nbytes"] > 0
    assert pair.sender.get(put(pair, 9)).numpy("t0")[0] == 9


def test_an_owner_that_goes_leaves_its_readers_an_answer(pair: Pair) -> None:
    """Fault: a reader that waits for the dead, or reads half a payload."""
    held, asked_late = put(pair, 1), put(pair, 2)
    views = pair.receiver.get(held).numpy("t0")
    pair.sender.close()
    began = time.monotonic()
    with contextlib.suppress(ConnectorError):  # shared memory outlives its owner, what lies elsewhere is gone
        assert is_whole(pair, asked_late, 2)
    assert time.monotonic() - began < 3.0
    assert (views == 1).all()


def test_a_closed_end_says_no_more(pair: Pair) -> None:
    """Fault: a call after close hangs, or ends its thread with a foreign error."""
    ref = put(pair)
    pair.close()
    began = time.monotonic()
    with pytest.raises(ConnectorError):
        pair.receiver.get(ref)
    pair.sender.release(ref)
    pair.receiver.release(ref)
    assert time.monotonic() - began < 1.0


def test_a_stale_reference_frees_and_reads_nobody_elses(pair: Pair) -> None:
    """Fault: the reference of a request that has ended reads, or frees, what came into its place."""
    old = put(pair, 1)
    pair.sender.release(old)
    new = [put(pair, fill) for fill in range(2, 10)]
    with pytest.raises(ConnectorError):
        pair.sender.get(old)
    pair.sender.release(old)
    pair.sender.release(old)
    assert pair.sender.health()["stale_releases"] == 2
    assert all(is_whole(pair, ref, fill) for fill, ref in enumerate(new, start=2))


@pytest.mark.parametrize("changes", [{"owner": "a/1"}, {"epoch": 2}, {"epoch": 0}])
def test_a_reference_of_another_incarnation_frees_and_reads_nothing(pair: Pair, changes: dict[str, Any]) -> None:
    """Fault: a restarted worker frees blocks by its predecessor's references."""
    ref = put(pair, 3)
    foreign = msgspec.structs.replace(ref, **changes)
    with pytest.raises(ConnectorError):
        pair.receiver.get(foreign)
    pair.sender.release(foreign)
    assert is_whole(pair, ref, 3)
    assert pair.sender.health()["used_nbytes"] >= NBYTES


HUGE = st.sampled_from([-(2**62), -1, 0, 1, 63, 64, NBYTES, CAPACITY, CAPACITY * 2, 2**62])
LOCATIONS = st.one_of(
    st.sampled_from(
        ["", "0", "-1", "65536", "9" * 30, "segment", "127.0.0.2:1", "nowhere", "127.0.0.2:99999", "²", "\0"]
    ),
    st.text(alphabet="0123456789 -+.x", max_size=8),
)
PLACES = st.builds(
    TensorPlace,
    st.sampled_from(["t0", ""]),
    st.builds(
        TensorSpec,
        st.sampled_from(["uint8", "float64", "complex64", ""]),
        st.lists(HUGE, max_size=3).map(tuple),
    ),
    HUGE,
)
LIES = st.fixed_dictionaries(
    {},
    optional={
        "owner": st.sampled_from(["a/0", "b/0", "", "stranger/9"]),
        "epoch": HUGE,
        "key": HUGE,
        "nbytes": HUGE,
        "location": LOCATIONS,
        "generation": HUGE,
        "tensors": st.lists(PLACES, max_size=2).map(tuple),
    },
)


@pytest.mark.parametrize("name", sorted(CONNECTORS))
def test_references_that_lie_break_nothing(name: str) -> None:
    """Fault: a corrupt reference ends a process, reads beyond its payload's memory, or frees what it has no right to."""
    pair = CONNECTORS[name]()
    truth = put(pair, 5)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(LIES)
    def lie(changes: dict[str, Any]) -> None:
        ref = msgspec.structs.replace(truth, **changes)
        try:
            for tensor in pair.receiver.get(ref).tensors.values():
                data = bytearray(tensor.spec.nbytes)
                assert tensor.spec.nbytes <= 2 * CAPACITY
                tensor.copy_to(memoryview(data))
        except ConnectorError:
            pass
        if not names_the_same(name, truth, ref):
            pair.sender.release(ref)
        assert is_whole(pair, truth, 5)

    lie()
    pair.sender.release(truth)
    assert pair.sender.health()["used_nbytes"] == 0
    pair.close()


def names_the_same(name: str, truth: PayloadRef, ref: PayloadRef) -> bool:
    """By what a connector finds a payload: a reference that agrees in this names it, whatever else it says."""
    found_by = {
        "inproc": ("owner", "epoch", "key"),
        "shm": ("owner", "epoch", "location", "generation"),
        "shm-named": ("owner", "epoch", "location", "generation"),
        "shm-segments": ("owner", "epoch", "key", "location"),
        "tcp": ("owner", "epoch", "key"),
    }[name]
    return all(getattr(truth, field) == getattr(ref, field) for field in found_by)


def test_a_payload_of_many_tensors_is_laid_out_alike_everywhere(pair: Pair) -> None:
    """Fault: the second tensor begins where the first one ends unaligned, or on top of it."""
    arrays = [np.full(70_001 + index, index, np.uint8) for index in range(3)]
    ref = pair.sender.try_put(payload_of(*arrays))
    assert ref is not None
    got = pair.receiver.get(ref)
    assert all((got.numpy(f"t{index}") == array).all() for index, array in enumerate(arrays))
