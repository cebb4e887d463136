"""The allocator under the arena."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.connectors.buddy import BuddyCache


def test_a_capacity_that_is_no_power_of_two_is_used_whole() -> None:
    """Fault: up to half of an arena is never used."""
    blocks = BuddyCache(7 * 64, 64)
    offsets = {blocks.take(64) for _ in range(7)}
    assert offsets == {64 * index for index in range(7)}
    assert blocks.take(1) is None


def test_giving_back_what_is_not_taken_is_an_error() -> None:
    """Fault: a double free corrupts the free lists silently."""
    blocks = BuddyCache(1024, 64)
    offset = blocks.take(100)
    assert offset is not None
    assert blocks.give_back(offset) == 128
    with pytest.raises(KeyError):
        blocks.give_back(offset)


def test_an_empty_capacity_gives_nothing() -> None:
    blocks = BuddyCache(0, 64)
    assert blocks.take(1) is None and blocks.largest_nbytes == 0


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 700), st.integers(0, 5)), max_size=60))
def test_blocks_never_overlap_and_all_merge_again(units: int, history: list[tuple[int, int]]) -> None:
    """Fault: two live blocks share bytes; free neighbours are not joined."""
    blocks = BuddyCache(units * 64, 64)
    largest = blocks.largest_nbytes
    live: dict[int, int] = {}
    for nbytes, victim in history:
        offset = blocks.take(nbytes)
        if offset is not None:
            assert all(offset + max(nbytes, 1) <= other or other + size <= offset for other, size in live.items())
            live[offset] = max(nbytes, 1)
        if live and victim < 3:
            blocks.give_back(live.popitem()[0])
    for offset in live:
        blocks.give_back(offset)
    assert blocks.used_nbytes == 0
    assert blocks.take(largest) is not None
