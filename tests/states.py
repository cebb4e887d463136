"""Two answers of /debug/state compared: what a campaign of faults has left behind in any process.

Counters that only rise, ids of processes and the size of memory do not belong to what is held; memory has a bound of its own.
Take the first state after some requests of every kind: thread pools and allocators grow to their size with the first ones.
"""

from collections.abc import Iterator
from typing import Any

RISING = frozenset(
    {
        "apart_by_budget_total",
        "apart_by_shape_total",
        "apart_by_timestep_total",
        "arrivals",
        "arena_puts",
        "batches_rerun",
        "block_rows_spared_total",
        "block_rows_total",
        "condition_hits_total",
        "condition_misses_total",
        "condition_nbytes",  # bounded; kept for the next picture of the same prompt
        "deaths",
        "duplicate_arrivals",
        "epoch",
        "helper_restarts_total",
        "inline_puts",
        "parked_total",
        "picture_steps_total",
        "pid",
        "preemptions",
        "prepared_cache_nbytes",  # bounded; kept for the next request with the same prompt
        "prepared_hits_total",
        "prefix_hits_total",
        "prefix_queries_total",
        "prepared_misses_total",
        "reason",
        "refused_puts",
        "segment_puts",
        "rerun_total",
        "stale_releases",
        "step_age_s",
        "step_failures",
        "step_seconds_total",
        "steps_total",
        "turn_seconds_total",
        "window_overruns",
    }
)
"""Names of figures that say nothing of what is held."""
MEMORY = "rss_nbytes"
RSS_GROWTH_NBYTES = 32 * 2**20


def differences(
    before: dict[str, Any], after: dict[str, Any], *, rss_growth_nbytes: int = RSS_GROWTH_NBYTES
) -> list[str]:
    """One line per figure that is not what it was, "path: before -> after"; memory of more than `rss_growth_nbytes` more."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    found = []
    for path in sorted(old.keys() | new.keys()):
        name = path.rpartition(".")[2]
        was, now = old.get(path), new.get(path)
        if name == MEMORY:
            grown = (now or 0) - (was or 0)
            if was is not None and grown > rss_growth_nbytes:
                found.append(f"{path}: {was} -> {now}")
        elif name not in RISING and was != now:
            found.append(f"{path}: {was!r} -> {now!r}")
    return found


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Lists count as one leaf."""
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for name, inner in value.items():
        yield from _leaves(inner, f"{path}.{name}" if path else str(name))
