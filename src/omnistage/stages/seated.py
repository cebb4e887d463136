"""What engines have in common whose requests have an inbox and a seat: being fed, parked, cancelled, and failing.

A request whose inbox has changed is *touched*, and looked at in the next step. What is said of requests waits in `_outputs` for it.
Knows nothing of what a request does with its seat.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from omnistage.core.errors import ErrorInfo, StageFailedError
from omnistage.core.payload import MultimodalPayload
from omnistage.stages.base import StageOutput
from omnistage.stages.inbox import InboxState
from omnistage.stages.seats import Seats


class SeatedRequest(Protocol):
    """What is read of a request here."""

    inbox: InboxState
    ready: bool


R = TypeVar("R", bound=SeatedRequest)


class SeatedEngine(ABC, Generic[R]):
    """A part of a `stages.base.StageEngine`. `stage` is the stage's name, `seats` whoever gives seats to its requests."""

    def __init__(self, stage: str, seats: Seats) -> None:
        self._stage = stage
        self._seats = seats
        self._requests: dict[str, R] = {}
        self._touched: dict[str, None] = {}  # requests whose inbox changed since the last step, in order
        self._outputs: list[StageOutput] = []

    def feed(self, request_id: str, source: int, seq: int, item: MultimodalPayload | None, *, last: bool) -> None:
        state = self._requests.get(request_id)
        if state is None:
            return
        try:
            state.inbox.feed(source, seq, item, last=last)
        except StageFailedError as error:
            self._fail(request_id, error)
        else:
            self._touched[request_id] = None

    def cancel(self, request_id: str) -> None:
        self._forget(request_id)
        self._outputs = [output for output in self._outputs if output.request_id != request_id]

    def set_ready(self, request_id: str, ready: bool) -> None:
        state = self._requests.get(request_id)
        if state is None:
            return
        state.ready = ready
        self._seats.set_ready(request_id, ready)
        if not ready:
            self._touched[request_id] = None

    @abstractmethod
    def _forget(self, request_id: str) -> None:
        """Frees everything a request holds, but not what it still has to say."""

    def _fail(self, request_id: str, error: Exception) -> None:
        self._forget(request_id)
        self._outputs.append(self._failed(request_id, error))

    def _failed(self, request_id: str, error: Exception) -> StageOutput:
        return StageOutput(request_id, error=ErrorInfo.of(error, stage=self._stage))
