"""The contract that every connector keeps, over all of them (tests.connectors.pairs). Faults and odd payloads are in test_faults
and test_fuzz."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.connectors.shm import ShmConnector
from omnistage.core.errors import ConnectorError, PayloadTooLargeError
from omnistage.core.payload import MultimodalPayload, PayloadRef
from omnistage.core.spec import TensorSpec
from tests.connectors.pairs import CAPACITY, CONNECTORS, EDGES, Pair, big, make_shm, payload_of


@pytest.fixture(params=sorted(CONNECTORS))
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = CONNECTORS[request.param]()
    yield made
    made.close()


def test_what_is_put_is_what_is_got(pair: Pair) -> None:
    """Fault: a tensor at the wrong offset, with the wrong type or shape, metadata lost, or a reference that does not survive its
    way through the control plane."""
    arrays = (np.arange(30_000, dtype=np.float32).reshape(100, 300), np.array([], np.int64), np.array(5, np.int16))
    ref = pair.sender.try_put(payload_of(*arrays, text="é", rate=24000))
    assert ref is not None
    got = pair.receiver.get(msgspec.msgpack.decode(msgspec.msgpack.encode(ref), type=PayloadRef))
    assert dict(got.metadata) == {"text": "é", "rate": 24000}
    for index, array in enumerate(arrays):
        np.testing.assert_array_equal(got.numpy(f"t{index}"), array, strict=True)


def test_bytes_come_within_reach_without_a_wait_in_get(pair: Pair) -> None:
    """Fault: an IO thread that stands still while a payload is on its way, or an item that is parked for ever."""
    ref = pair.sender.try_put(big(2**20))
    assert ref is not None
    deadline = time.monotonic() + 5.0
    while not pair.receiver.can_read(ref):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    began = time.monotonic()
    assert pair.receiver.get(ref).numpy("t0").sum() == 7 * 2**20
    assert time.monotonic() - began < 1.0


def test_a_small_payload_occupies_nothing() -> None:
    """Fault: every text delta takes an arena block."""
    pair = make_shm()
    ref = pair.sender.try_put(payload_of(np.zeros(16, np.float32)))
    assert ref is not None and ref.inline is not None
    assert pair.sender.health()["used_nbytes"] == 0
    assert ShmConnector("stranger/0", 1).can_read(ref)


def test_what_is_read_where_it_lies_says_that_it_is_lent(pair: Pair) -> None:
    """Fault: what must be copied before its release is taken for its reader's own, or the other way round."""
    large, small = pair.sender.try_put(big(2**20)), pair.sender.try_put(payload_of(np.zeros(16, np.float32)))
    assert large is not None and small is not None
    assert pair.receiver.get(large).lent == (pair.sender.name != "inproc")
    assert not pair.receiver.get(small).lent


def test_no_room_is_none_and_release_makes_room(pair: Pair) -> None:
    """Fault: a full connector blocks, raises, or never recovers."""
    held = []
    while (ref := pair.sender.try_put(big(2**20))) is not None:
        held.append(ref)
        assert len(held) <= 4
    assert pair.sender.health()["used_nbytes"] == CAPACITY
    pair.sender.release(held.pop())
    assert pair.sender.try_put(big(2**20)) is not None


def test_a_full_connector_has_room_for_one_payload_of_the_oldest_request_of_each_edge(pair: Pair) -> None:
    """Fault: the oldest waits for room that only younger ones could free, which wait for the oldest."""
    while pair.sender.try_put(big(2**20)) is not None:
        pass
    first, other = (pair.sender.try_put(big(2**20, fill), oldest_of=edge) for fill, edge in enumerate(EDGES))
    assert first is not None and other is not None
    assert pair.sender.try_put(big(2**20), oldest_of=EDGES[0]) is None
    assert pair.receiver.get(first).numpy("t0").tobytes() == bytes([0]) * 2**20
    assert pair.receiver.get(other).numpy("t0").tobytes() == bytes([1]) * 2**20
    pair.sender.release(first)
    assert pair.sender.try_put(big(2**20)) is None
    assert pair.sender.try_put(big(2**20), oldest_of=EDGES[0]) is not None


def test_a_payload_that_can_never_fit_is_refused_by_name(pair: Pair) -> None:
    """Fault: an oversized payload waits for ever."""
    with pytest.raises(PayloadTooLargeError, match=str(2 * CAPACITY)):
        pair.sender.try_put(big(2 * CAPACITY))
    assert pair.sender.health()["used_nbytes"] == 0


class Broken:
    """A tensor that cannot be copied."""

    spec = TensorSpec("uint8", (2**20,))

    def copy_to(self, view: memoryview) -> None:
        raise RuntimeError("the device is gone")


@pytest.mark.parametrize("name", sorted(CONNECTORS.keys() - {"inproc"}))
def test_a_copy_that_fails_keeps_nothing(name: str) -> None:
    """Fault: an error in the sender leaks a block of the arena, or bytes of a budget."""
    pair = CONNECTORS[name]()
    with pytest.raises(RuntimeError, match="device"):
        pair.sender.try_put(MultimodalPayload({"t": Broken()}))
    assert pair.sender.health()["used_nbytes"] == 0
    pair.close()


def test_releasing_twice_is_a_counted_no_op(pair: Pair) -> None:
    """Fault: a second release frees the block of the payload that came after."""
    first = pair.sender.try_put(big(2**20, 1))
    assert first is not None
    pair.sender.release(first)
    second = pair.sender.try_put(big(2**20, 2))
    assert second is not None
    pair.sender.release(first)
    assert pair.sender.health()["stale_releases"] == 1
    assert pair.receiver.get(second).numpy("t0").tobytes() == b"\x02" * 2**20
    assert pair.sender.health()["used_nbytes"] == 2**20


def test_views_cannot_be_written(pair: Pair) -> None:
    """Fault: a reader changes what another reader of the same payload sees."""
    ref = pair.sender.try_put(big(2**20))
    assert ref is not None
    with pytest.raises(ValueError, match="read-only"):
        pair.receiver.get(ref).numpy("t0")[0] = 1


def test_close_forgets_everything(pair: Pair) -> None:
    """Fault: a closed connector keeps memory, or closing twice raises."""
    ref = pair.sender.try_put(big(2**20))
    assert ref is not None
    pair.sender.close()
    pair.sender.close()
    assert pair.sender.health()["used_nbytes"] == 0
    with pytest.raises(ConnectorError):
        pair.sender.get(ref)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 900_000), st.booleans()), max_size=40), st.sampled_from(sorted(CONNECTORS)))
def test_any_history_leaves_nothing(history: list[tuple[int, bool]], name: str) -> None:
    """Fault: blocks lost to fragmentation, live payloads overwritten."""
    pair = CONNECTORS[name]()
    held: list[tuple[PayloadRef, bytes]] = []
    for fill, (nbytes, releases) in enumerate(history):
        ref = pair.sender.try_put(big(nbytes, fill % 255))
        if ref is not None:
            held.append((ref, bytes([fill % 255]) * nbytes))
        if releases and held:
            pair.sender.release(held.pop(0)[0])
        for live, data in held:
            assert pair.receiver.get(live).numpy("t0").tobytes() == data
    for live, _ in held:
        pair.sender.release(live)
    assert pair.sender.health()["used_nbytes"] == 0
    for _ in range(4):
        assert pair.sender.try_put(big(2**20)) is not None
    pair.close()
