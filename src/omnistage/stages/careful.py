"""Calls on a batch that may fail for one of its items: then each is tried alone, once, and only those that fail alone fail."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from omnistage.core.errors import StageFailedError

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Made = TypeVar("Made")


class CarefulCalls:
    """See the module. `stage` is the stage's name, for messages; `num_reruns` counts batches that were taken apart."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self.num_reruns = 0

    def made(
        self, what: str, call: Callable[[Sequence[Item]], Sequence[Made]], batch: Sequence[Item]
    ) -> list[Made | Exception]:
        """What `call` makes of each item, in order, or the exception that it raised for the item alone. `what` names the call."""
        try:
            return self._called(what, call, batch)
        except Exception as error:
            log.exception("%s of %d failed", what, len(batch), extra={"stage": self._stage})
            if len(batch) == 1:
                return [error]
        self.num_reruns += 1
        return [self._alone(what, call, item) for item in batch]

    def _alone(self, what: str, call: Callable[[Sequence[Item]], Sequence[Made]], item: Item) -> Made | Exception:
        try:
            return self._called(what, call, [item])[0]
        except Exception as error:  # noqa: BLE001 - whatever fails alone is the failure of those that want it
            return error

    def _called(
        self, what: str, call: Callable[[Sequence[Item]], Sequence[Made]], batch: Sequence[Item]
    ) -> list[Made | Exception]:
        made = list(call(batch))
        if len(made) != len(batch):
            raise StageFailedError(f"{what}: {len(made)} results were made of {len(batch)}", stage=self._stage)
        return [*made]
