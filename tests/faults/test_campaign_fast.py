"""A short fault campaign: a fast part of `make faults`, so that what it proves does not rot between its runs."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.faults import campaign, memory, scenes

HARD_TIMEOUT_S = 90.0


@pytest.fixture(autouse=True)
def hard_timeout() -> Iterator[None]:
    def too_long(*_: object) -> None:
        raise TimeoutError(f"the test has been running for {HARD_TIMEOUT_S} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, HARD_TIMEOUT_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_no_invariant_is_violated_by_sixty_requests_with_faults(tmp_path: Path) -> None:
    """Fault: any of the nine, whatever goes wrong around it. The seed is fixed, so that a failure can be looked into."""
    report = campaign.Report()
    campaign.waves(Random(20), tmp_path, 60, report)
    assert report.violations == []
    assert report.requests == 60 and len(report.faults) >= 10


def test_a_death_takes_no_silent_request_with_it(tmp_path: Path) -> None:
    """Fault: who was silent is not run again; who had spoken gets two ends, or none."""
    assert scenes.death(tmp_path, Counter()) == []


def test_a_killed_server_leaves_nothing(tmp_path: Path) -> None:
    """Fault: workers, names or files of a server outlive it, or the next start does not serve."""
    assert scenes.server_killed(tmp_path, Counter(), ["under work"]) == []


@pytest.mark.parametrize("apart", [False, True])
def test_what_stands_still_does_not_outlive_a_killed_server(tmp_path: Path, apart: bool) -> None:
    """Fault: a stopped process does not see its life line end, and keeps itself and all that it holds for ever."""
    assert scenes.stopped_outlive_nobody(tmp_path, Counter(), [apart]) == []


def test_a_start_without_memory_says_so(tmp_path: Path) -> None:
    """Fault: a server without an arena hangs, or ends without a word."""
    assert memory.no_arena(tmp_path, Counter(), [memory.MORE_THAN_THERE_IS]) == []


def test_a_poison_dies_alone(tmp_path: Path) -> None:
    """Fault: the neighbours of a request that kills its worker die with it."""
    assert scenes.poison(tmp_path, Counter(), stages=("thinker",)) == []
