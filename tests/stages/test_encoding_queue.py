"""Whose inputs are encoded next."""

from __future__ import annotations

from dataclasses import dataclass

from omnistage.stages.encoding_queue import EncodingQueue


@dataclass(frozen=True)
class One:
    key: str
    tokens: int = 4


def keys(queue: EncodingQueue[One]) -> str:
    return "".join(one.key for one in queue.batch())


def test_the_oldest_go_first_and_equal_media_once() -> None:
    """Fault: a later request overtakes, a picture of two requests is encoded twice, or a call is larger than a step may be."""
    queue: EncodingQueue[One] = EncodingQueue(10)
    queue.add("late", (0, 2), [One("x"), One("b")])
    queue.add("early", (0, 1), [One("a"), One("b"), One("a")])
    assert keys(queue) == "ab"
    assert queue.requests_of("b") == ["late", "early"]
    assert not queue.take("early", "a")
    assert queue.take("early", "b")
    assert keys(queue) == "xb"
    assert not queue.take("late", "b")
    queue.remove("late")
    queue.remove("unknown")
    assert (len(queue), keys(queue)) == (0, "")


def test_one_that_is_larger_than_a_step_goes_alone() -> None:
    """Fault: a large picture waits for ever, or takes others with it."""
    queue: EncodingQueue[One] = EncodingQueue(10)
    queue.add("one", (0, 1), [One("a", 30), One("b")])
    assert keys(queue) == "a"
    queue.take("one", "a")
    queue.add("two", (0, 2), [One("c", 30)])
    assert keys(queue) == "b"
