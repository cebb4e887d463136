"""Who waits for mail: one step thread that is idle, or else the main thread.

Faults pinned: mail that nobody hears of; mail that wakes two threads; a sleeper that is missed; a sleeper that outlives the door.
"""

import os
import select
import threading
from collections.abc import Iterator

import pytest

from omnistage.stages.doorway import Doorway

DEADLINE_S = 5.0


class Door:
    """A doorway over an eventfd, and sleepers in threads of their own."""

    def __init__(self) -> None:
        self.mail = os.eventfd(0, os.EFD_NONBLOCK)
        self.read: list[str] = []
        self.needed = False
        self.way = Doorway(self.mail, self._read)
        self._asked = threading.Event()

    def _read(self) -> None:
        os.eventfd_read(self.mail)
        self.read.append(threading.current_thread().name)

    def _is_needed(self) -> bool:
        self._asked.set()
        return self.needed

    def sleep(self, sleeper: str) -> threading.Thread:
        """A thread of this name that is about to sleep."""
        self._asked.clear()
        thread = threading.Thread(target=self.way.sleep, args=(sleeper, self._is_needed, DEADLINE_S), name=sleeper)
        thread.start()
        assert self._asked.wait(DEADLINE_S)
        return thread

    def tell(self) -> None:
        os.eventfd_write(self.mail, 1)

    @property
    def gate_is_open(self) -> bool:
        return bool(select.select([self.way], [], [], 0)[0])


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.way.close()
    os.close(made.mail)


def ended(thread: threading.Thread) -> bool:
    """At once, not at the end of its sleep."""
    thread.join(DEADLINE_S / 2)
    return not thread.is_alive()


def test_a_sleeper_reads_and_the_main_thread_hears_of_what_comes_later(door: Door) -> None:
    """Fault: two threads wake for one message, or nobody does once the sleeper has something to do."""
    door.tell()
    assert door.gate_is_open
    os.eventfd_read(door.mail)
    sleeper = door.sleep("step")
    assert not door.gate_is_open
    door.tell()
    assert ended(sleeper) and door.read == ["step"]
    assert not door.gate_is_open
    door.tell()
    assert door.gate_is_open


def test_the_gate_is_shut_while_mail_waits_for_a_sleeper(door: Door) -> None:
    """Fault: the main thread wakes for what the sleeper is about to read."""
    seen = []
    way = Doorway(door.mail, lambda: seen.append(select.select([way], [], [], 0)[0]))
    door.tell()
    assert way.sleep("step", lambda: False, DEADLINE_S)
    assert seen == [[]]
    assert select.select([way], [], [], 0)[0]  # nobody has taken the mail
    way.close()


def test_a_sleeper_that_is_rung_for_wakes_and_others_do_not(door: Door) -> None:
    """Fault: what is posted to an idle stage waits for the next mail; or each post of each stage wakes it."""
    sleeper = door.sleep("step")
    door.way.ring("another")
    sleeper.join(0.05)
    assert sleeper.is_alive()
    door.way.ring("step")
    assert ended(sleeper) and door.read == []


def test_a_sleeper_that_has_been_given_something_does_not_sleep(door: Door) -> None:
    """Fault: what was posted just before the sleep is found ten seconds later."""
    door.way.ring("step")
    door.needed = True
    assert ended(door.sleep("step"))


def test_one_sleeps_here_at_a_time(door: Door) -> None:
    """Fault: two threads read at once, or the gate opens while one still sleeps."""
    first = door.sleep("first")
    assert not door.way.sleep("second", lambda: False, DEADLINE_S)
    assert not door.gate_is_open
    door.way.ring("first")
    assert ended(first)
    door.needed = True
    assert door.way.sleep("second", lambda: True, DEADLINE_S)


def test_the_end_of_the_door_wakes_its_sleeper() -> None:
    """Fault: a thread that sleeps at a descriptor which is somebody else's by now."""
    door = Door()
    sleeper = door.sleep("step")
    door.way.close()
    assert ended(sleeper)
    assert not door.way.sleep("step", lambda: False, DEADLINE_S)
    door.way.ring("step")
    os.close(door.mail)
