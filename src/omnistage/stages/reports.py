"""What a step has to say, in short reports: whoever hears of 64 sounds in one go hears of nothing else meanwhile.

Knows nothing of sockets, or of what is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omnistage.wire.messages import ControlDone, ItemArrived, WorkerEvent
from omnistage.wire.worker import StepReport

ITEMS = 8
"""A report ends after so many where the next one is of another request."""


def reports(items: Sequence[WorkerEvent], at_s: float, arrivals: tuple[ItemArrived, ...] = ()) -> list[StepReport]:
    """`items`, of which there is one at least, in order; the arrivals go with the first."""
    first, *others = pieces(items)
    told = [StepReport(items=piece, at_s=at_s) for piece in others]
    return [StepReport(items=first, at_s=at_s, arrivals=arrivals), *told]


def pieces(items: Sequence[WorkerEvent]) -> Iterator[tuple[WorkerEvent, ...]]:
    """What is said of one request in a row stays together: a payload for two targets would be released between the two."""
    begin = 0
    for end in range(ITEMS, len(items)):
        if end - begin >= ITEMS and _subject(items[end]) != _subject(items[end - 1]):
            yield tuple(items[begin:end])
            begin = end
    yield tuple(items[begin:])


def _subject(item: WorkerEvent) -> str:
    return item.call_id if isinstance(item, ControlDone) else item.request_id
