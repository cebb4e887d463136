"""What the benchmarks of pictures ask for stays what it is: other requests would make rows that look faster or slower."""

import hashlib
import importlib
import sys
from dataclasses import astuple

import pytest

from benchmarks.diffusion_workload import (
    LINE_SHAPE,
    LINE_STEPS,
    LOAD,
    PAINTED,
    PAINTED_AT_A_TIME,
    PAINTED_STEPS,
    REQUESTS,
    SIZES,
    STEPS,
    arrivals,
    line,
    painted,
    wishes,
)


def test_wishes_are_those_that_earlier_rows_were_measured_with() -> None:
    """Fault: a workload that was made easier with the code that is measured."""
    drawn = [astuple(wish) for size in SIZES.values() for wish in (*wishes(size), *line(size))]
    told = repr([drawn, [astuple(wish) for wish in painted()], arrivals(1.0, REQUESTS)])
    assert hashlib.blake2b(told.encode(), digest_size=8).hexdigest() == "a7913610e0f512d5"


def test_numbers_of_the_rows() -> None:
    """Fault: fewer steps or requests, another model or a lower goal behind the same row's name."""
    assert (STEPS, REQUESTS, LOAD, LINE_STEPS, LINE_SHAPE.tokens) == (20, 200, 0.8, (4, 8, 12, 20), 16)
    assert (PAINTED, PAINTED_AT_A_TIME, PAINTED_STEPS) == (64, 8, (16, 20, 24, 28))
    assert [astuple(size) for size in SIZES.values()] == [
        (16, 32, 4, 4, 16, 16, 512, 3.0, 1.0),
        (64, 64, 8, 8, 8, 8, 512, 1.4, 1.0),
        (256, 128, 8, 12, 4, 8, 256, 0.97, 1.1),
    ]


def test_a_row_without_a_peer_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: what compares the engine with itself imports diffusers, and fails where it is not installed."""
    for name in [name for name in sys.modules if name.startswith("benchmarks")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "diffusers", None)
    assert importlib.import_module("benchmarks.painting").main
