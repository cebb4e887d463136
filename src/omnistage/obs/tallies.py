"""Counters and histograms that every item moves: plain numbers, made into Prometheus' samples when they are read.

Looks on the page like the Counter and the Histogram of prometheus_client, which take a lock and search their buckets for every
number. A series is added to by one thread and read by any: a reader may see a number that is being added in the buckets and not in
the sum yet. Knows nothing of what is counted.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric


class CountState:
    """One series of a counter."""

    __slots__ = ("created_s", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.created_s = time.time()

    def add(self, amount: float = 1.0) -> None:
        self.value += amount


class SpreadState:
    """One series of a histogram. `bounds` ascend; a value counts in the first bucket whose bound it does not exceed."""

    __slots__ = ("bounds", "counts", "created_s", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.created_s = time.time()

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class Counts:
    """A counter with labels; `registry` collects it."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, labels: tuple[str, ...]) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._series: dict[tuple[str, ...], CountState] = {}
        registry.register(self)

    def of(self, *values: str) -> CountState:
        return self._series.setdefault(values, CountState())

    def collect(self) -> Iterator[Metric]:
        metric = Metric(self._name, self._text, "counter")
        for values, series in list(self._series.items()):
            labels = dict(zip(self._labels, values, strict=True))
            metric.add_sample(f"{self._name}_total", labels, series.value)
            metric.add_sample(f"{self._name}_created", labels, series.created_s)
        yield metric


class Spreads:
    """A histogram with labels; `registry` collects it."""

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, bounds: Sequence[float], labels: tuple[str, ...]
    ) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, labels, tuple(bounds)
        self._ends = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self._series: dict[tuple[str, ...], SpreadState] = {}
        if not labels:
            self.of()  # what has no labels is on show from the start
        registry.register(self)

    def of(self, *values: str) -> SpreadState:
        return self._series.setdefault(values, SpreadState(self._bounds))

    def collect(self) -> Iterator[Metric]:
        metric = Metric(self._name, self._text, "histogram")
        for values, series in list(self._series.items()):
            labels = dict(zip(self._labels, values, strict=True))
            cumulated = list(accumulate(series.counts))
            for end, count in zip(self._ends, cumulated, strict=True):
                metric.add_sample(f"{self._name}_bucket", {**labels, "le": end}, count)
            metric.add_sample(f"{self._name}_count", labels, cumulated[-1])
            metric.add_sample(f"{self._name}_sum", labels, series.total)
            metric.add_sample(f"{self._name}_created", labels, series.created_s)
        yield metric
