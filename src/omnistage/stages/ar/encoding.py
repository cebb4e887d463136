"""Media of prompts become rows before their prompts are computed: whose turn it is, the encoder's call, what it made of late.

A call is a step of its own, of the oldest requests first, bounded by the rows that it makes. Equal media are encoded once. A call
that fails is made again, one by one, once: only media that fail alone fail.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from omnistage.core.errors import StageFailedError
from omnistage.modeling.protocols import EncodedMedia, MediaInput
from omnistage.stages.ar.recent import RecentValues
from omnistage.stages.ar.runner import ARRunner

log = logging.getLogger(__name__)

ENCODED_NBYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class _Waiting:
    order: tuple[int, int]
    missing: dict[str, MediaInput]


class EncodingQueue:
    """Whose media are encoded next. Knows no tensors."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def add(self, request_id: str, order: tuple[int, int], media: Iterable[MediaInput]) -> None:
        self._waiting[request_id] = _Waiting(order, {one.key: one for one in media})

    def remove(self, request_id: str) -> None:
        """Unknown ids are fine."""
        self._waiting.pop(request_id, None)

    def batch(self) -> list[MediaInput]:
        """What one call encodes: at most `max_tokens` rows, or one medium."""
        found: dict[str, MediaInput] = {}
        left = self._max_tokens
        for waiting in sorted(self._waiting.values(), key=_order):
            for key, media in waiting.missing.items():
                if key in found:
                    continue
                if found and media.tokens > left:
                    return list(found.values())
                found[key] = media
                left -= media.tokens
        return list(found.values())

    def requests_of(self, key: str) -> list[str]:
        """Those that wait for it."""
        return [request_id for request_id, waiting in self._waiting.items() if key in waiting.missing]

    def take(self, request_id: str, key: str) -> bool:
        """It need not wait for this any more; True if it waits for nothing, and it is forgotten."""
        missing = self._waiting[request_id].missing
        del missing[key]
        if not missing:
            del self._waiting[request_id]
        return not missing


def _order(waiting: _Waiting) -> tuple[int, int]:
    return waiting.order


class MediaEncoder:
    """The encoder's calls, and what they made of late."""

    def __init__(self, runner: ARRunner, stage: str, limit_nbytes: int = ENCODED_NBYTES) -> None:
        self._runner = runner
        self._stage = stage
        self._recent: RecentValues[str, EncodedMedia] = RecentValues(limit_nbytes)
        self.num_reruns = 0

    def known(self, media: MediaInput) -> EncodedMedia | None:
        """What was made of it before, if it is still there."""
        return self._recent.get(media.key)

    def encode(self, batch: Sequence[MediaInput]) -> list[tuple[MediaInput, EncodedMedia | Exception]]:
        made = self._encoded(batch)
        for media, found in made:
            if isinstance(found, EncodedMedia):
                nbytes = found.rows.nbytes + (0 if found.layered is None else found.layered.nbytes)
                self._recent.put(media.key, found, nbytes)
        return made

    def _encoded(self, batch: Sequence[MediaInput]) -> list[tuple[MediaInput, EncodedMedia | Exception]]:
        try:
            return self._called(batch)
        except Exception as error:
            log.exception("encoding %d media failed", len(batch), extra={"stage": self._stage})
            if len(batch) == 1:
                return [(batch[0], error)]
        self.num_reruns += 1
        return [self._alone(media) for media in batch]

    def _alone(self, media: MediaInput) -> tuple[MediaInput, EncodedMedia | Exception]:
        try:
            return self._called([media])[0]
        except Exception as error:  # noqa: BLE001 - whatever fails alone is the failure of those that want it
            return media, error

    def _called(self, batch: Sequence[MediaInput]) -> list[tuple[MediaInput, EncodedMedia | Exception]]:
        made = list(zip(batch, self._runner.encode(batch), strict=True))
        for media, found in made:
            if len(found.rows) != media.tokens:
                raise StageFailedError(f"{media.kind}: {len(found.rows)} rows were made for {media.tokens} places")
        return [*made]
