"""No test of this folder runs longer than its hard timeout, whatever hangs."""

import signal
from collections.abc import Iterator

import pytest

HARD_TIMEOUT_S = 40.0


@pytest.fixture(autouse=True)
def hard_timeout() -> Iterator[None]:
    def too_long(*_: object) -> None:
        raise TimeoutError(f"the test has been running for {HARD_TIMEOUT_S} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, HARD_TIMEOUT_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
