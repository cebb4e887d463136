"""The comparison of two states: what counts as left behind, and what does not."""

import copy
from typing import Any

import pytest

from tests.states import differences

STATE: dict[str, Any] = {
    "server": {"process": {"pid": 7, "rss_nbytes": 100, "threads": 3}, "machine": {"refs_held": 0, "requests": {}}},
    "workers": {
        "main/0": {"process": {"pid": 8, "rss_nbytes": 50, "open_files": 9}, "stages": {"writer": {"held": 0}}}
    },
}


def changed(*path: str, value: Any) -> dict[str, Any]:
    state = copy.deepcopy(STATE)
    inner = state
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return state


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("server", "machine", "refs_held"), 1, "server.machine.refs_held: 0 -> 1"),
        (("server", "machine", "requests"), {"r": {}}, "server.machine.requests: {} -> None"),
        (("server", "process", "threads"), 4, "server.process.threads: 3 -> 4"),
        (("workers", "main/0", "stages", "writer", "held"), 2, "workers.main/0.stages.writer.held: 0 -> 2"),
        (("workers", "main/0", "process", "rss_nbytes"), 2000, "workers.main/0.process.rss_nbytes: 50 -> 2000"),
        (("workers",), {}, "workers: None -> {}"),
    ],
)
def test_what_is_left_behind_is_told(path: tuple[str, ...], value: Any, said: str) -> None:
    """Fault: a leak in some process that the comparison passes over."""
    assert said in differences(STATE, changed(*path, value=value), rss_growth_nbytes=1000)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("workers", "main/0", "process", "pid"), 9),
        (("server", "machine", "arrivals"), 12),
        (("server", "process", "rss_nbytes"), 900),
        (("server", "process", "rss_nbytes"), 10),
    ],
)
def test_what_only_rises_is_not(path: tuple[str, ...], value: Any) -> None:
    """Fault: a campaign that fails because requests were counted, or a worker was started anew."""
    assert differences(STATE, changed(*path, value=value), rss_growth_nbytes=1000) == []
