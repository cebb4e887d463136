"""Media of prompts become rows before their prompts are computed: the encoder's call, and what it made of late.

A call is a step of its own, of the oldest requests first, bounded by the rows that it makes (stages.encoding_queue). A call that
fails is made again, one by one, once: only media that fail alone fail.
"""

from __future__ import annotations

from collections.abc import Sequence

from omnistage.core.errors import StageFailedError
from omnistage.modeling.protocols import EncodedMedia, MediaInput
from omnistage.stages.ar.runner import ARRunner
from omnistage.stages.careful import CarefulCalls
from omnistage.stages.recent import RecentValues

ENCODED_NBYTES = 256 * 2**20


class MediaEncoder:
    """The encoder's calls, and what they made of late."""

    def __init__(self, runner: ARRunner, stage: str, limit_nbytes: int = ENCODED_NBYTES) -> None:
        self._runner = runner
        self._calls = CarefulCalls(stage)
        self._recent: RecentValues[str, EncodedMedia] = RecentValues(limit_nbytes)

    @property
    def num_reruns(self) -> int:
        return self._calls.num_reruns

    def known(self, media: MediaInput) -> EncodedMedia | None:
        """What was made of it before, if it is still there."""
        return self._recent.get(media.key)

    def encode(self, batch: Sequence[MediaInput]) -> list[tuple[MediaInput, EncodedMedia | Exception]]:
        made = self._calls.made("encoding media", self._called, batch)
        for media, found in zip(batch, made, strict=True):
            if isinstance(found, EncodedMedia):
                nbytes = found.rows.nbytes + (0 if found.layered is None else found.layered.nbytes)
                self._recent.put(media.key, found, nbytes)
        return list(zip(batch, made, strict=True))

    def _called(self, batch: Sequence[MediaInput]) -> list[EncodedMedia]:
        made = self._runner.encode(batch)
        for media, found in zip(batch, made, strict=False):  # how many there are is looked at by whoever calls
            if len(found.rows) != media.tokens:
                raise StageFailedError(f"{media.kind}: {len(found.rows)} rows were made for {media.tokens} places")
        return made
