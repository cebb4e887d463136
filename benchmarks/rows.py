"""What a benchmark yields, and which there are.

A row states our figure, the peer's (null where a figure has no peer), the goal, and all that is needed to judge them. Ratios
are medians of interleaved pairs, measured in one run. A benchmark is a function without arguments that returns rows,
or says why there are none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """`goal` reads like "<= 0.8"; it is for `ratio` where there is a peer, else for `ours`. `at_most` bounds `ours` beside it. CPU
    seconds sum over processes."""

    name: str
    ours: float
    goal: str
    unit: str
    workload: str
    threads: int = 1
    peer: float | None = None
    peer_version: str | None = None
    ratio: float | None = None
    at_most: float | None = None
    env: dict[str, str] = field(default_factory=dict)
    cpu_s_ours: float | None = None
    cpu_s_peer: float | None = None
    loadavg: float = field(default_factory=lambda: os.getloadavg()[0])

    @property
    def reached(self) -> bool:
        sign, limit = self.goal.split()
        value = self.ours if self.ratio is None else self.ratio
        if self.at_most is not None and self.ours > self.at_most:
            return False
        return value <= float(limit) if sign == "<=" else value >= float(limit)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "reached": self.reached}


@dataclass(frozen=True, slots=True)
class Skipped:
    """What a benchmark gives for all of its rows where it cannot run, because a peer is not there."""

    reason: str


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`names` are the rows it yields; `quick` ones together take less than ten minutes."""

    names: tuple[str, ...]
    run: Callable[[], list[Row] | Skipped]
    quick: bool = True
