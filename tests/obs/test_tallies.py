"""Plain numbers on the page, beside the library's own counters and histograms."""

import re

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from omnistage.obs.tallies import Counts, Spreads

BOUNDS = (0.1, 0.5, 2.0)
VALUES = (0.0, 0.1, 0.1000001, 0.5, 1.75, 2.0, 2.5, 100.0)


def page(registry: CollectorRegistry) -> str:
    """Without the moments at which series were made."""
    return re.sub(r"(_created\S* ).*", r"\1", generate_latest(registry).decode())


def test_a_histogram_looks_like_the_librarys() -> None:
    """Fault: a value on a bound that counts in the next bucket, buckets that do not add up, a line that is missing."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    spreads = Spreads(ours, "seconds", "A text", BOUNDS, ("source", "target"))
    histogram = Histogram("seconds", "A text", ("source", "target"), buckets=BOUNDS, registry=theirs)
    assert page(ours) == page(theirs)
    for index, value in enumerate(VALUES):
        spreads.of("a", str(index % 2)).add(value)
        histogram.labels("a", str(index % 2)).observe(value)
    assert page(ours) == page(theirs)


def test_a_histogram_without_labels_is_on_show_from_the_start_and_counts_repeats() -> None:
    """Fault: a series that appears with the first value only; a piece of many tokens that counts once."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    spreads = Spreads(ours, "gaps", "A text", BOUNDS, ())
    histogram = Histogram("gaps", "A text", buckets=BOUNDS, registry=theirs)
    assert page(ours) == page(theirs)
    spreads.of().add(0.25, 3)
    for _ in range(3):
        histogram.observe(0.25)
    assert page(ours) == page(theirs)


def test_a_counter_looks_like_the_librarys() -> None:
    """Fault: a counter under another name or of another type than dashboards ask for."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counts, counter = Counts(ours, "items", "A text", ("edge",)), Counter("items", "A text", ("edge",), registry=theirs)
    assert page(ours) == page(theirs)
    for edge, amount in (("a", 1), ("b", 7), ("a", 2.5)):
        counts.of(edge).add(amount)
        counter.labels(edge).inc(amount)
    assert page(ours) == page(theirs)
