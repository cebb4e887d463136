"""The inbox of a request: order per source, the bridge between, credit, and the bound on what it holds.

Faults pinned: an item lost or doubled on the way passes unnoticed; the bridge runs ahead of a slow stage; a bridge that
waits for a second source holds back credit; buffers grow without bound; the end comes before the last input is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest

from omnistage.core.errors import InvalidRequestError, OmniError, PayloadTooLargeError, StageFailedError
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.spec import TensorSpec
from omnistage.modeling.protocols import StageInput
from omnistage.stages.inbox import InboxState, nbytes_of


def payload(value: object) -> MultimodalPayload:
    return MultimodalPayload(metadata={"value": value})


def one_each(
    state: Any, source: int, seq: int, item: MultimodalPayload | None, last: bool
) -> tuple[Any, list[StageInput]]:
    """One input per payload."""
    return state, [StageInput({"source": source, "value": item.metadata["value"]}, 10)] if item else []


def joining(
    state: Any, source: int, seq: int, item: MultimodalPayload | None, last: bool
) -> tuple[Any, list[StageInput]]:
    """Pairs of items of sources 0 and 1; what has no partner yet is kept."""
    kept: dict[int, list[Any]] = state or {0: [], 1: []}
    if item is not None:
        kept = {**kept, source: [*kept[source], item.metadata["value"]]}
    pairs = min(len(kept[0]), len(kept[1]))
    made = [StageInput({"pair": (kept[0][index], kept[1][index])}, 1) for index in range(pairs)]
    return {key: values[pairs:] for key, values in kept.items()}, made


def inbox_of(bridge: Any = one_each, sources: tuple[int, ...] = (0,), **changes: Any) -> InboxState:
    values: dict[str, Any] = {"stage": "speaker", "window": 2, "max_input_nbytes": 1000}
    return InboxState(bridge, sources, **(values | changes))


def taken(inbox: InboxState) -> list[Mapping[str, Any]]:
    return [inbox.take().data for _ in range(inbox.unused)]


def test_items_become_inputs_in_order_and_the_end_comes_after_the_last_is_used() -> None:
    """Fault: a stage that ends while an input is still unused."""
    inbox = inbox_of()
    inbox.feed(0, 0, payload("a"), last=False)
    inbox.feed(0, 1, payload("b"), last=True)
    assert inbox.advance() == ((0, 1),)
    assert not inbox.exhausted
    assert [unit["value"] for unit in taken(inbox)] == ["a", "b"]
    assert inbox.exhausted


def test_the_bridge_waits_while_the_window_is_full() -> None:
    """Fault: credit goes back to the source although nothing has been used."""
    inbox = inbox_of(window=2)
    for seq in range(4):
        inbox.feed(0, seq, payload(seq), last=False)
    assert inbox.advance() == ((0, 1),)
    assert not inbox.can_advance
    assert inbox.advance() == ()
    inbox.take()
    assert inbox.advance() == ((0, 2),)


def test_a_bridge_that_only_keeps_withholds_no_credit() -> None:
    """Fault: two sources wait for each other, because what has no partner blocks the window."""
    inbox = inbox_of(joining, (0, 1), window=1)
    for seq in range(5):
        inbox.feed(0, seq, payload(seq), last=seq == 4)
    assert inbox.advance() == ((0, 4),)
    inbox.feed(1, 0, payload("x"), last=True)
    assert inbox.advance() == ((1, 0),)
    assert [unit["pair"] for unit in taken(inbox)] == [(0, "x")]
    assert inbox.exhausted


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([(0, 1, False)], "item 1 .* where item 0 was due"),
        ([(0, 0, False), (0, 0, False)], "item 0 .* where item 1 was due"),
        ([(0, 0, True), (0, 1, False)], "item 1 .* after the last one"),
        ([(7, 0, False)], "no edge from stage 7"),
    ],
    ids=["gap", "twice", "after the end", "stranger"],
)
def test_an_item_out_of_order_is_an_error_that_names_the_edge(items: list[tuple[int, int, bool]], says: str) -> None:
    """Fault: a lost or repeated chunk shortens or doubles what the caller hears."""
    inbox = inbox_of()
    *before, (source, seq, last) = items
    for earlier in before:
        inbox.feed(earlier[0], earlier[1], payload("x"), last=earlier[2])
    with pytest.raises(StageFailedError, match=says) as raised:
        inbox.feed(source, seq, payload("x"), last=last)
    assert raised.value.stage == "speaker"


def test_the_bound_counts_state_and_unused_inputs_and_names_the_edge() -> None:
    """Fault: a join buffer that grows until the process is killed."""
    inbox = inbox_of(joining, (0, 1), max_input_nbytes=100)
    inbox.feed(0, 0, payload("x" * 50), last=False)
    inbox.advance()
    assert inbox.nbytes >= 50
    inbox.feed(0, 1, payload("x" * 60), last=False)
    with pytest.raises(PayloadTooLargeError, match=r"edge 0 -> speaker: .* at most 100") as raised:
        inbox.advance()
    assert raised.value.field == "edge 0 -> speaker"


@pytest.mark.parametrize(("keeps_used", "held_nbytes"), [(False, 0), (True, 20)])
def test_used_inputs_count_only_where_they_are_kept(keeps_used: bool, held_nbytes: int) -> None:
    """Fault: a long stream fails although each input is gone, or a stage that recomputes holds more than its bound."""
    inbox = inbox_of(keeps_used=keeps_used)
    for seq in range(2):
        inbox.feed(0, seq, payload(seq), last=False)
    inbox.advance()
    taken(inbox)
    assert inbox.nbytes == held_nbytes


@pytest.mark.parametrize(
    ("fault", "expected", "says"),
    [
        (ValueError("odd"), StageFailedError, "the bridge of stage speaker failed: ValueError: odd"),
        (InvalidRequestError("no such voice"), InvalidRequestError, "no such voice"),
    ],
)
def test_a_bridge_that_raises_is_named(fault: Exception, expected: type[OmniError], says: str) -> None:
    """Fault: a model's bridge ends the engine, or a request's own error loses its kind."""

    def broken(*_item: object) -> tuple[Any, list[StageInput]]:
        raise fault

    inbox = inbox_of(broken)
    inbox.feed(0, 0, payload("x"), last=True)
    with pytest.raises(expected, match=says):
        inbox.advance()


def test_an_entry_stage_has_all_its_inputs_at_once() -> None:
    """Fault: a stage without sources waits for its first item for ever, or ignores its bound."""
    inbox = InboxState.of_entry(
        [StageInput({"word": "a"}), StageInput({"word": "b"})], stage="writer", max_input_nbytes=100
    )
    assert inbox.unused == 2
    first = inbox.peek()
    assert first is not None
    assert first.data == {"word": "a"}
    taken(inbox)
    assert inbox.exhausted
    assert inbox.peek() is None
    with pytest.raises(PayloadTooLargeError, match="the request: 105 bytes"):
        InboxState.of_entry([StageInput({"word": "a" * 101})], stage="writer", max_input_nbytes=100)


@dataclass
class Kept:
    text: str
    array: Any


class Packed(msgspec.Struct):
    data: bytes


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        (None, 0),
        ("four", 4),
        (b"four", 4),
        (7, 8),
        ([1, "ab"], 10),
        ({"key": (2, 3)}, 19),
        (np.zeros(3, np.float32), 12),
        (memoryview(b"12345"), 5),
        (Tensor.of(np.zeros(2, np.float64)), 16),
        (Kept("ab", np.zeros(4, np.uint8)), 6),
        (Packed(b"123"), 3),
    ],
)
def test_plain_values_are_measured(value: object, nbytes: int) -> None:
    """Fault: a kind of state that counts as nothing escapes the bound."""
    assert nbytes_of(value) == nbytes


def lent(count: int = 10) -> MultimodalPayload:
    """`count` bytes that lie in somebody else's memory."""
    spec = TensorSpec("uint8", (count,))
    return MultimodalPayload({"x": Tensor(spec, memoryview(bytes(range(count))))}, lent=True)


def sums(state: Any, source: int, seq: int, item: MultimodalPayload | None, last: bool) -> tuple[Any, list[StageInput]]:
    return state, [StageInput({"sum": int(item.numpy("x").sum()), "lent": item.lent}, 1)] if item else []


def test_what_waits_is_copied_out_of_the_memory_that_others_need() -> None:
    """Fault: a request that may not go on keeps its items in its sender's arena; credit comes back for what was only copied."""
    inbox = inbox_of(sums, window=1)
    for seq in range(3):
        inbox.feed(0, seq, lent(), last=False)
    assert inbox.advance() == ((0, 0),)
    assert inbox.copy_out() == ((0, 2),)
    assert inbox.copy_out() == ()
    assert inbox.nbytes == 21
    for _ in range(2):
        inbox.take()
        inbox.advance()
    assert [unit["sum"] for unit in taken(inbox)] == [45]
    assert inbox.nbytes == 0


def test_what_is_lent_by_nobody_is_not_copied() -> None:
    """Fault: what came inside a message, or by reference in this process, is copied for nothing."""
    inbox = inbox_of(sums, window=1)
    for seq in range(3):
        inbox.feed(0, seq, by_itself(lent()), last=False)
    inbox.advance()
    assert inbox.copy_out() == ()


def by_itself(item: MultimodalPayload) -> MultimodalPayload:
    return MultimodalPayload(item.tensors, item.metadata)


def test_copies_stay_within_the_bound_and_fail_nobody() -> None:
    """Fault: copies without bound; a request that fails because it was paused."""
    inbox = inbox_of(sums, window=1, max_input_nbytes=25)
    for seq in range(4):
        inbox.feed(0, seq, lent(), last=False)
    inbox.advance()
    assert inbox.copy_out() == ((0, 2),)
    assert inbox.nbytes == 21
    inbox.take()
    assert inbox.advance() == ((0, 1),)
    assert inbox.copy_out() == ((0, 3),)
