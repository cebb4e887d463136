"""The queue by which other threads speak to a runtime."""

import functools
import select

from omnistage.runtime.inbox import Inbox


def readable(inbox: Inbox) -> bool:
    return bool(select.select([inbox.fileno()], [], [], 0)[0])


def test_calls_come_out_in_order_and_the_descriptor_tells_of_them() -> None:
    """Fault: a lost wake-up, or one that never ends."""
    inbox, said = Inbox(), list[int]()
    assert not readable(inbox)
    for number in range(3):
        assert inbox.put(functools.partial(said.append, number))
    assert readable(inbox)
    for call in inbox.take():
        call()
    assert said == [0, 1, 2]
    assert not readable(inbox) and inbox.take() == []
    inbox.put(lambda: None)
    assert readable(inbox)
    inbox.close()


def test_a_full_inbox_refuses_what_opens_something_and_takes_the_rest() -> None:
    """Fault: an unbounded queue, or an abort that is lost because the queue is full."""
    inbox = Inbox(capacity=2)
    assert [inbox.put(lambda: None, refusable=True) for _ in range(3)] == [True, True, False]
    assert inbox.put(lambda: None)
    assert len(inbox.take()) == 3
    assert inbox.put(lambda: None, refusable=True)
    inbox.close()


def test_a_closed_inbox_hands_out_the_rest_once_and_takes_no_more() -> None:
    """Fault: a call that is put after the end and never run, while its caller waits."""
    inbox = Inbox()
    inbox.put(lambda: None)
    assert len(inbox.close()) == 1
    assert inbox.closed and not inbox.put(lambda: None)
    assert inbox.close() == []
