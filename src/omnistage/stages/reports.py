"""What a step has to say, in short reports: whoever hears of 64 sounds in one go hears of nothing else meanwhile.

Knows nothing of sockets, or of what is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omnistage.wire.messages import ControlDone, WorkerEvent

ITEMS = 8
"""A report ends after so many where the next one is of another request."""


def reports(items: Sequence[WorkerEvent]) -> Iterator[tuple[WorkerEvent, ...]]:
    """`items`, of which there is one at least, in order. What is said of one request in a row stays together: a payload for two
    targets would be released between the two."""
    begin = 0
    for end in range(ITEMS, len(items)):
        if end - begin >= ITEMS and _subject(items[end]) != _subject(items[end - 1]):
            yield tuple(items[begin:end])
            begin = end
    yield tuple(items[begin:])


def _subject(item: WorkerEvent) -> str:
    return item.call_id if isinstance(item, ControlDone) else item.request_id
