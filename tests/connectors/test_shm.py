"""What only the shared-memory connector promises."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest

from omnistage.connectors.memory import create_arena
from omnistage.connectors.shm import ShmConnector
from omnistage.core.errors import ConnectorError
from omnistage.core.payload import MultimodalPayload, Tensor


def payload(nbytes: int) -> MultimodalPayload:
    return MultimodalPayload({"t": Tensor.of(np.full(nbytes, 3, np.uint8))})


def test_an_arena_has_no_name_and_leaves_nothing() -> None:
    """Fault: kill -9 leaves files behind in /dev/shm."""
    before = set(os.listdir("/dev/shm"))
    descriptor = create_arena(2**20)
    connector = ShmConnector("a/0", 1, descriptor)
    assert set(os.listdir("/dev/shm")) == before
    connector.close()
    os.close(descriptor)


def test_an_impossible_arena_is_one_clear_line() -> None:
    """Fault: the machine runs out of memory at the first big hand-off instead of at start."""
    with pytest.raises(ConnectorError, match="cannot be allocated"):
        create_arena(2**60)


def test_nobody_but_the_owner_can_map_it_writable() -> None:
    """Fault: a reader's stray write changes another request's tensors."""
    descriptor = create_arena(2**20)
    connector = ShmConnector("a/0", 1, descriptor)
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, 2**20)
    connector.close()
    os.close(descriptor)


def test_what_a_dead_owner_wrote_stays_readable() -> None:
    """Fault: the death of a producer takes away what its consumer has not read yet."""
    descriptor = create_arena(2**22)
    owner, reader = ShmConnector("a/0", 1, descriptor), ShmConnector("b/0", 1)
    ref = owner.try_put(payload(2**20))
    assert ref is not None
    owner.close()
    assert not reader.can_read(ref)
    reader.attach("a/0", 1, descriptor)
    os.close(descriptor)
    assert reader.get(ref).numpy("t").sum() == 3 * 2**20
    reader.detach("a/0", 1)
    with pytest.raises(ConnectorError, match="not attached"):
        reader.get(ref)


def test_a_ref_outside_the_arena_is_refused() -> None:
    """Fault: a corrupt reference reads other memory."""
    descriptor = create_arena(2**22)
    owner = ShmConnector("a/0", 1, descriptor)
    ref = owner.try_put(payload(2**20))
    assert ref is not None
    broken = type(ref)(
        ref.connector, ref.owner, ref.epoch, ref.key, ref.tensors, {}, ref.nbytes, None, str(2**22 - 5), 1
    )
    with pytest.raises(ConnectorError, match="outside"):
        owner.get(broken)
    os.close(descriptor)


def test_a_released_block_is_poisoned_in_tests() -> None:
    """Fault: a bridge that keeps a view works by luck until the block is used again."""
    descriptor = create_arena(2**22)
    owner = ShmConnector("a/0", 1, descriptor, poison=True)
    ref = owner.try_put(payload(2**20))
    assert ref is not None
    view = owner.get(ref).numpy("t")
    owner.release(ref)
    assert view.min() == 255
    os.close(descriptor)
