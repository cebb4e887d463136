"""Items on their way to a worker's stages: fetched where they lie, and handed over in the order of their edge.

An item whose memory is not within reach yet waits here, and with it all later ones of its edge; one whose memory does not come in
time, or is gone, fails its request. To be used from the worker's main thread. Times are seconds of `clock`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from omnistage.connectors.base import Connectors
from omnistage.core.errors import ConnectorError, ErrorInfo
from omnistage.stages.host import Fed
from omnistage.wire.messages import Feed, ItemArrived

DESCRIPTOR_WAIT_S = 10.0
"""How long an item may wait for the descriptor of the memory it lies in; then its request fails."""


class Mailbox(Protocol):
    """A stage, as far as items are for it."""

    def post(self, mail: Fed) -> None: ...


class IntakeState:
    """See the module. `note` hears of an item before it is handed over, so that whoever hears what became of it has heard of its
    arrival. Its length counts the items that wait."""

    def __init__(
        self,
        connectors: Connectors,
        stages: Mapping[int, Mailbox],
        *,
        note: Callable[[ItemArrived], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connectors = connectors
        self._stages = stages
        self._note = note
        self._clock = clock
        self._delayed: deque[tuple[float, Feed]] = deque()

    def __len__(self) -> int:
        return len(self._delayed)

    def feed(self, feed: Feed) -> None:
        """Fetches and delivers an item, or keeps it until its arena is within reach; items of an edge stay in order."""
        if self._must_wait(feed):
            self._delayed.append((self._clock() + DESCRIPTOR_WAIT_S, feed))
        else:
            self._deliver(feed)

    def retry(self) -> None:
        """Something may have come within reach."""
        waiting, self._delayed = self._delayed, deque()
        for due_s, feed in waiting:
            if self._must_wait(feed):
                self._delayed.append((due_s, feed))
            else:
                self._deliver(feed)

    def forget(self, request_id: str, attempt: int, stage_id: int) -> None:
        """What waits for a request that is cancelled."""
        of_this = (request_id, attempt, stage_id)
        self._delayed = deque(
            item for item in self._delayed if (item[1].request_id, item[1].attempt, item[1].target) != of_this
        )

    def fail_overdue(self, now_s: float) -> None:
        self.fail(lambda due_s, _: due_s <= now_s, f"its memory did not come within {DESCRIPTOR_WAIT_S:g} s")

    def fail(self, is_lost: Callable[[float, Feed], bool], why: str) -> None:
        """Fails the requests of the items that are lost. `is_lost` is asked with when an item is due, and the item."""
        lost = [feed for due_s, feed in self._delayed if is_lost(due_s, feed)]
        self._delayed = deque(item for item in self._delayed if not is_lost(*item))
        for feed in lost:
            error = ConnectorError(f"item {feed.seq} of edge {feed.source} -> {feed.target} cannot be read: {why}")
            self._stages[feed.target].post(Fed(feed, error=ErrorInfo.of(error)))

    def _must_wait(self, feed: Feed) -> bool:
        """Asking whether an item is within reach begins to fetch it, also behind another one."""
        is_within_reach = feed.ref is None or self._connectors[feed.ref.connector].can_read(feed.ref)
        return not is_within_reach or (bool(self._delayed) and self._follows_one_that_waits(feed))

    def _follows_one_that_waits(self, feed: Feed) -> bool:
        return any(_edge_of(held) == _edge_of(feed) for _, held in self._delayed)

    def _deliver(self, feed: Feed) -> None:
        stage = self._stages[feed.target]
        try:
            payload = self._connectors[feed.ref.connector].get(feed.ref) if feed.ref is not None else None
        except ConnectorError as error:
            stage.post(Fed(feed, error=ErrorInfo.of(error)))
        else:
            self._note(_arrival_of(feed, self._clock()))
            stage.post(Fed(feed, payload))


def _arrival_of(feed: Feed, now_s: float) -> ItemArrived:
    return ItemArrived(
        request_id=feed.request_id,
        attempt=feed.attempt,
        source=feed.source,
        target=feed.target,
        seq=feed.seq,
        at_s=now_s,
    )


def _edge_of(feed: Feed) -> tuple[str, int, int, int]:
    return feed.request_id, feed.attempt, feed.source, feed.target
