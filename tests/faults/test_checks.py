"""The campaign's own eyes, on servers that are scripts.

Faults pinned: memory of a worker that was started anew is compared with nothing; a death that is told is missed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.faults import checks
from tests.faults.server import ServerProcess
from tests.states import MEMORY, RSS_GROWTH_NBYTES


def state(pid: int, nbytes: int) -> dict[str, Any]:
    worker = {"process": {"pid": pid, MEMORY: nbytes}}
    return {"server": {}, "workers": {"speaker/0": worker}}


class Scripted:
    """Answers in order, the last for ever. Its one worker is nobody's process."""

    def __init__(self, *answers: Any) -> None:
        self._answers = deque(answers)

    def _next(self) -> Any:
        return self._answers.popleft() if len(self._answers) > 1 else self._answers[0]

    debug_state = health = _next

    def worker_pid(self, stage: str) -> int:
        return 2**22 + 1


def scripted(*answers: Any) -> ServerProcess:
    return cast(ServerProcess, Scripted(*answers))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "QUIET_S", 0.0)
    monkeypatch.setattr(checks, "killed", lambda pid: pid)


@pytest.mark.parametrize(("grown", "told"), [(RSS_GROWTH_NBYTES, 0), (RSS_GROWTH_NBYTES + 1, 1)])
def test_a_worker_that_was_started_anew_has_a_first_size_of_its_own(grown: int, told: int) -> None:
    """Fault: after the first death of a stage its memory may grow for the rest of a run."""
    first, later = 2**20, 300 * 2**20
    server = scripted(state(7, first), state(8, later), state(8, later + grown))
    rest = checks.Rest.of(server)
    assert rest.differs(server) == []
    assert len(rest.differs(server)) == told


def test_a_worker_that_is_not_there_is_told() -> None:
    """Fault: a comparison that only looks at what both have."""
    server = scripted(state(7, 1), {"server": {}, "workers": {}})
    assert checks.Rest.of(server).differs(server)


def test_whoever_kills_looks_until_it_is_told() -> None:
    """Fault: a restart between two looks is taken for a death that nobody told of."""
    ready, starting = (200, {"stages": {"speaker": "ready"}}), (503, {"stages": {"speaker": "restarting"}})
    watch = checks.Watch(scripted(ready, ready, starting, ready))
    assert watch.kill("speaker")
    time.sleep(0.01)
    assert watch.whole()
    assert watch.violations() == []


async def test_looks_without_a_pause_hide_no_slow_beat() -> None:
    """Fault: /health takes seconds under load, and nobody is told because of a thousand quick answers after a death."""
    watch = checks.Watch(scripted((200, {"stages": {}})))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.run(), 0.2)
    watch.beats[:] = [replace(watch.beats[0], took_s=2.0)]
    watch.looks += [replace(watch.beats[0], took_s=0.001)] * 1000
    assert watch.p99_s == 2.0


def test_a_death_that_is_never_told_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a look that takes anything for the news."""
    monkeypatch.setattr(checks, "TRUTH_S", 0.05)
    watch = checks.Watch(scripted((200, {"stages": {"speaker": "ready"}})))
    assert watch.kill("speaker")
    assert watch.violations() == ["/health did not tell of the death of speaker within 0.05 s"]
