"""Counting the holders of payloads."""

from omnistage.orchestrator.refs import RefState
from tests.orchestrator.traces import ref


def test_a_ref_is_released_after_its_last_holder_and_once() -> None:
    """Fault: the first of two consumers frees what the second still reads."""
    refs = RefState()
    refs.hold(ref(1))
    refs.hold(ref(1))
    refs.drop(ref(1))
    assert refs.flush() == []
    refs.drop(ref(1))
    assert [release.ref.key for release in refs.flush()] == [1]
    assert (refs.flush(), len(refs)) == ([], 0)


def test_a_ref_that_is_held_again_within_an_event_is_not_released() -> None:
    """Fault: a ref reported for two targets, the first of them dead, is released before the second gets it."""
    refs = RefState()
    refs.refuse(ref(1))
    refs.hold(ref(1))
    assert refs.flush() == []


def test_a_refused_delivery_releases_what_nobody_else_holds() -> None:
    """Fault: a late payload stays in the arena for ever, or is torn from one who reads it."""
    refs = RefState()
    refs.hold(ref(1))
    refs.refuse(ref(1))
    refs.refuse(ref(2))
    assert [release.ref.key for release in refs.flush()] == [2]


def test_generations_of_a_block_are_different_payloads() -> None:
    """Fault: a block that is used again is taken for the payload that was there before."""
    refs = RefState()
    refs.hold(ref(1, generation=1))
    refs.hold(ref(1, generation=2))
    refs.drop(ref(1, generation=1))
    assert [release.ref.generation for release in refs.flush()] == [1]


def test_an_item_without_payload_is_nothing_to_hold() -> None:
    """Fault: the bare end of an edge is counted or released."""
    refs = RefState()
    refs.hold(None)
    refs.refuse(None)
    refs.drop(None)
    assert (refs.flush(), len(refs)) == ([], 0)
