"""Sequence and credit of one edge."""

from omnistage.orchestrator.edges import REMEMBERED_REFS, EdgeState, Item, Verdict
from omnistage.orchestrator.plan import EdgePlan
from tests.orchestrator.traces import ref


def filled(count: int, window: int = 4, *, last: bool = False) -> EdgeState:
    """An edge whose source has sent `count` items."""
    edge = EdgeState(EdgePlan(0, 1, window=window))
    for seq in range(count):
        edge.record(Item(seq, ref(seq), last and seq == count - 1))
    return edge


def test_only_the_next_number_is_the_next_item() -> None:
    """Fault: a hole in the sequence, or a number seen before, passes for the next item."""
    edge = filled(2)
    assert [edge.judge(seq) for seq in (0, 1, 2, 3)] == [Verdict.SEEN, Verdict.SEEN, Verdict.NEXT, Verdict.GAP]


def test_nothing_follows_the_last_item() -> None:
    """Fault: an item after the end is handed on."""
    assert filled(2, last=True).judge(2) is Verdict.GAP


def test_a_repeated_delivery_is_told_from_a_new_payload_under_an_old_number() -> None:
    """Fault: a payload in use is released, or one that nobody holds is kept."""
    edge = filled(2)
    assert edge.is_repeated(Item(0, ref(0), last=False))
    assert not edge.is_repeated(Item(0, ref(9), last=False))
    assert not edge.is_repeated(Item(0, None, last=False))


def test_the_memory_of_payloads_is_bounded() -> None:
    """Fault: a long stream keeps a name of every item it ever sent."""
    assert len(filled(3 * REMEMBERED_REFS)._recent) == REMEMBERED_REFS


def test_credit_is_given_once() -> None:
    """Fault: a repeated acknowledgement lets a source go beyond its window."""
    edge = filled(3)
    assert [edge.acknowledge_upto(seq) for seq in (1, 1, 0, 2)] == [2, 0, 0, 1]


def test_what_was_not_sent_cannot_be_acknowledged() -> None:
    """Fault: a wrong acknowledgement makes credit out of nothing."""
    edge = filled(1)
    assert (edge.acknowledge_upto(7), edge.acknowledge_one()) == (1, 0)


def test_a_source_is_exhausted_when_its_window_is_full_and_it_has_more_to_say() -> None:
    """Fault: a finished source counts as waiting for its target, or an unwindowed one does."""
    assert filled(2, window=2).exhausted
    assert not filled(1, window=2).exhausted
    assert not filled(2, window=2, last=True).exhausted
    assert not filled(9, window=0).exhausted


def test_the_backlog_is_taken_once_in_order() -> None:
    """Fault: an item that waited for its target is fed twice or out of order."""
    edge = filled(0)
    edge.backlog = [Item(0, None, last=False), Item(1, None, last=True)]
    assert [item.seq for item in edge.take_backlog()] == [0, 1]
    assert edge.take_backlog() == []
