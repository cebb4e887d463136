"""Reference counts and sharing of blocks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.stages.ar.block_manager import BlockManager, chain_digest


def chain(*blocks: list[int], content_key: str = "") -> list[bytes]:
    digests: list[bytes] = []
    for tokens in blocks:
        digests.append(chain_digest(digests[-1] if digests else b"", tokens, content_key))
    return digests


def test_the_null_block_is_never_given_out() -> None:
    """Fault: padding and a request write to the same block."""
    manager = BlockManager(4, 2)
    assert sorted(manager.allocate(3) or []) == [1, 2, 3]
    assert manager.num_free == 0


def test_nothing_is_taken_when_there_is_not_enough() -> None:
    """Fault: half an allocation that nobody gives back."""
    manager = BlockManager(4, 2)
    assert manager.allocate(4) is None
    assert manager.num_free == manager.capacity == 3


def test_a_published_block_is_found_after_its_release_until_it_is_taken() -> None:
    """Fault: content that nobody references is forgotten, or is found after it was overwritten."""
    manager = BlockManager(4, 2)
    digests = chain([1, 2], [3, 4])
    blocks = manager.allocate(2) or []
    for block, digest in zip(blocks, digests, strict=True):
        manager.publish(block, digest)
    manager.release(blocks)
    assert manager.match(digests) == blocks
    manager.allocate(3)
    assert manager.match(digests) == []


def test_what_is_forgotten_is_not_found_and_not_lost() -> None:
    """Fault: a reset cache still gives hits, frees blocks that a request holds, or loses idle ones."""
    manager = BlockManager(4, 2)
    digests = chain([1, 2], [3, 4])
    idle, held = manager.allocate(1) or [], manager.allocate(1) or []
    manager.publish(idle[0], digests[0])
    manager.publish(held[0], digests[1])
    manager.release(idle)
    assert manager.forget() == 2
    assert manager.match(digests) == []
    assert (manager.references(held[0]), manager.num_free) == (1, 2)
    manager.release(held)
    assert sorted(manager.allocate(3) or []) == [1, 2, 3]


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    """Fault: the first block goes first, and the rest, which can only be reached through it, is dead weight."""
    manager = BlockManager(4, 2)
    digests = chain([1, 2], [3, 4], [5, 6])
    blocks = manager.allocate(3) or []
    for block, digest in zip(blocks, digests, strict=True):
        manager.publish(block, digest)
    manager.release(blocks)
    manager.allocate(1)
    assert manager.match(digests) == blocks[:2]


def test_the_longest_unused_is_evicted_first() -> None:
    """Fault: a prefix that was just used goes before one that nobody asks for."""
    manager = BlockManager(3, 2)
    old, new = manager.allocate(2) or []
    old_digest, new_digest = chain([1, 1])[0], chain([2, 2])[0]
    manager.publish(old, old_digest)
    manager.publish(new, new_digest)
    manager.release([new])
    manager.release([old])
    manager.acquire(manager.match([new_digest]))
    manager.release([new])
    manager.allocate(1)
    assert manager.match([old_digest]) == []
    assert manager.match([new_digest]) == [new]


def test_a_shared_block_is_free_after_its_last_holder() -> None:
    """Fault: the first release frees what another request still reads."""
    manager = BlockManager(3, 2)
    blocks = manager.allocate(1) or []
    manager.publish(blocks[0], chain([1, 2])[0])
    manager.acquire(blocks)
    manager.release(blocks)
    assert manager.references(blocks[0]) == 1
    assert manager.num_free == 1
    manager.release(blocks)
    assert manager.num_free == 2


def test_the_first_of_two_equal_blocks_stays_known() -> None:
    """Fault: two blocks with one digest; evicting one forgets the other."""
    manager = BlockManager(4, 2)
    first, second = manager.allocate(2) or []
    digest = chain([1, 2])[0]
    manager.publish(first, digest)
    manager.publish(second, digest)
    manager.release([second])
    manager.allocate(2)
    assert manager.match([digest]) == [first]


def test_a_block_keeps_its_first_digest() -> None:
    """Fault: a block known under two digests, of which only one is forgotten."""
    manager = BlockManager(2, 2)
    blocks = manager.allocate(1) or []
    first, second = chain([1, 2], [3, 4])
    manager.publish(blocks[0], first)
    manager.publish(blocks[0], second)
    assert manager.match([second]) == []


def test_releasing_too_often_is_noticed() -> None:
    """Fault: a block is free while somebody reads it."""
    manager = BlockManager(3, 2)
    blocks = manager.allocate(1) or []
    manager.release(blocks)
    with pytest.raises(AssertionError, match="more often"):
        manager.release(blocks)


@pytest.mark.parametrize(
    "other",
    [
        chain([1, 2], [3, 5]),
        chain([9, 2], [3, 4]),
        chain([1, 2], [3, 4], content_key="picture"),
        chain([1], [2, 3, 4]),
    ],
)
def test_digests_tell_what_differs(other: list[bytes]) -> None:
    """Fault: equal tokens behind another prefix, or with another picture, are taken for the same."""
    assert chain([1, 2], [3, 4])[1] != other[1]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), num_blocks=st.integers(2, 12))
def test_no_block_is_lost_over_random_use(seed: int, num_blocks: int) -> None:
    """Fault: a leak, a block given out twice, a count that drifts."""
    chance = random.Random(seed)
    manager = BlockManager(num_blocks, 2)
    held: list[list[int]] = []
    for step in range(300):
        match chance.randrange(4) if chance.random() < 0.98 else 4:
            case 0 if (blocks := manager.allocate(chance.randrange(4))) is not None:
                held.append(blocks)
            case 1 if held:
                manager.release(held.pop(chance.randrange(len(held))))
            case 2 if held:
                manager.acquire(again := chance.choice(held))
                held.append(list(again))
            case 3 if held and (some := chance.choice(held)):
                manager.publish(some[0], chain([step % 7])[0])
            case 4:
                manager.forget()
        counts = [sum(blocks.count(block) for blocks in held) for block in range(num_blocks)]
        assert [manager.references(block) for block in range(num_blocks)] == counts
        assert manager.num_free == sum(count == 0 for count in counts[1:])
    for blocks in held:
        manager.release(blocks)
    assert manager.num_free == manager.capacity
    assert sorted(manager.allocate(manager.capacity) or []) == list(range(1, num_blocks))


def test_a_forgotten_cache_finds_nothing_and_loses_no_block() -> None:
    """Fault: what was computed with other weights is found again; idle blocks vanish; held ones become free."""
    manager = BlockManager(5, 2)
    digests = chain([1, 2], [3, 4])
    idle, held = manager.allocate(2) or []
    manager.publish(idle, digests[0])
    manager.publish(held, digests[1])
    manager.release([idle])
    assert manager.forget() == 2
    assert manager.match(digests) == []
    assert (manager.num_free, manager.references(held)) == (3, 1)
    manager.release([held])
    assert sorted(manager.allocate(4) or []) == [1, 2, 3, 4]
