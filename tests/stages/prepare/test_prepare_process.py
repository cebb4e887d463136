"""One helper process as its worker holds it.

Faults pinned: a worker that waits for a helper; one that trusts whatever comes; descriptors that are left open.
"""

import gc
import os
import time
from collections.abc import Callable

from omnistage.stages.prepare.messages import SLACK_NBYTES, frame
from omnistage.stages.prepare.process import HelperProcess
from tests.stages.prepare.family import entry

DEADLINE_S = 10.0


def until(happened: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def test_what_a_helper_does_not_take_yet_is_kept_and_its_death_leaves_nothing() -> None:
    """Fault: the worker's main thread waits until a busy helper has read megabytes; a descriptor stays open."""
    gc.collect()  # what earlier tests have left open is closed now, and not while this one counts
    before = len(os.listdir("/proc/self/fd"))
    helper = HelperProcess(frame(entry()), SLACK_NBYTES)
    begun_s = time.monotonic()
    helper.send(bytes(30_000_000))
    assert helper.flush()
    assert time.monotonic() - begun_s < 1.0
    helper.kill()
    until(lambda: not helper.receive() and helper.is_silent)
    assert not helper.flush()
    helper.kill()
    assert helper.close() == "was killed by SIGKILL"
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_helper_that_says_too_much_is_killed() -> None:
    """Fault: a broken helper fills the worker's memory."""
    helper = HelperProcess(frame(entry()), limit_nbytes=10)
    until(lambda: helper.receive() == [] and helper.is_silent)
    assert helper.close() == "was killed by SIGKILL"
