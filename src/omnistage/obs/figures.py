"""What is measured of stages, edges and requests, as plain values, and who wants to hear of it.

Stands apart from `metrics`, so that whoever measures pays for no library of metrics. Durations in seconds, never negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StageFigures:
    """One run of one request in one replica of a stage has ended.

    `outcome`: finished, failed (`error` is the error's code), cancelled (the stage was told to let go), lost (its worker died).
    `waiting_s` until the stage got the request, `queued_s` inside it until its first step, of which `prepare_s` in the processor of
    an entry stage, `running_s` from there to the end, of which `forward_s` in the model. Counts and the last four are known where
    the stage itself has ended the run.
    """

    stage: str
    replica: int
    outcome: str
    error: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    audio_seconds: float = 0.0
    images: int = 0
    waiting_s: float = 0.0
    queued_s: float | None = None
    prepare_s: float | None = None
    running_s: float | None = None
    forward_s: float | None = None


MAX_RUNS = 32
"""Pairs of `EdgeTotals.schedule`."""


@dataclass(frozen=True, slots=True)
class EdgeTotals:
    """What has gone over one edge for one request, all attempts together. `transfer_s` and `queue_s` are sums over its items.

    `schedule`, of the last attempt, where the edge counts rows or frames: (how many an item had, how many items in a row had as
    many), in order, at most MAX_RUNS pairs; `units` is the sum over all items, also of those that were no longer written down.
    """

    items: int = 0
    nbytes: int = 0
    transfer_s: float = 0.0
    queue_s: float = 0.0
    units: int = 0
    schedule: tuple[tuple[int, int], ...] = ()


class FlowObserver(Protocol):
    """Hears of everything that flows, in the runtime's thread; must not block or raise. Edges by the names of their ends."""

    def stage_ended(self, figures: StageFigures) -> None: ...

    def item_sent(self, source: str, target: str, nbytes: int) -> None:
        """An item, tensors and metadata together `nbytes`, is handed to its target."""

    def item_taken(self, source: str, target: str, transfer_s: float, queue_s: float) -> None:
        """Its target has taken it over: it was on its way for `transfer_s` and waited for `queue_s`."""
