"""A short fault campaign: a fast part of `make faults`, so that what it proves does not rot between its runs."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.faults import campaign, scenes

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


@pytest.mark.parametrize("name", ["death", "server_killed", "no_arena"])
def test_a_scene_holds(name: str, tmp_path: Path) -> None:
    """Fault: a death takes silent requests with it, a killed server leaves something, a start without memory says nothing."""
    faults: Counter[str] = Counter()
    assert scenes.SCENES[name](tmp_path, faults) == []
    assert faults.total() == 1


def test_a_poison_dies_alone(tmp_path: Path) -> None:
    """Fault: the neighbours of a request that kills its worker die with it."""
    assert scenes.poison(tmp_path, Counter(), stages=("thinker",)) == []
