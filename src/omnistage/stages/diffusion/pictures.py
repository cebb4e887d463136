"""What the engines of diffusion stages have in common: requests come in, are planned, wait for a slot, and end with their pictures.

Knows nothing of how a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from omnistage.config.stage import DiffusionStageConfig
from omnistage.core.payload import MultimodalPayload
from omnistage.stages.base import StageOutput, StageRequest
from omnistage.stages.diffusion.admission import Admission
from omnistage.stages.diffusion.requests import RequestState
from omnistage.stages.seated import SeatedEngine
from omnistage.stages.seats import Seats

Consumed = tuple[tuple[int, int], ...]


class PictureEngine(SeatedEngine[RequestState]):
    """A part of a `stages.base.StageEngine`."""

    def __init__(
        self, config: DiffusionStageConfig, admission: Admission, seats: Seats, clock: Callable[[], float]
    ) -> None:
        super().__init__(config.model_stage, seats)
        self._config = config
        self._admission = admission
        self._clock = clock
        self._parked_total = 0
        self._picture_steps_total = 0

    def add(self, request: StageRequest) -> None:
        try:
            state = self._admission.admit(request)
        except Exception as error:  # noqa: BLE001 - whatever a processor makes of a request is that request's fault
            self._outputs.append(self._failed(request.request_id, error))
            return
        self._requests[request.request_id] = state
        self._seats.add(request.request_id, request.order)
        self._touched[request.request_id] = None

    def interrupt(self, request_id: str) -> None:
        """A step works for many requests and is short: it is never ended early for one."""

    def gauges(self) -> dict[str, float]:
        waiting = self._seats.waiting
        return {
            "running": len(self._requests) - waiting,
            "waiting": waiting,
            "parked_total": self._parked_total,
            "picture_steps_total": self._picture_steps_total,
            "input_nbytes": sum(state.inbox.nbytes for state in self._requests.values()),
        }

    def _take_inputs(self) -> None:
        """Bridges and plans what has come, and ends requests that were told their last item and have nothing left to do."""
        touched, self._touched = list(self._touched), {}
        for request_id in touched:
            state = self._requests[request_id]
            try:
                consumed = self._admission.advance(state)
            except Exception as error:  # noqa: BLE001 - whatever a bridge or a model makes of an input is its request's fault
                self._fail(request_id, error)
                continue
            self._seats.set_input(request_id, state.plan is not None)
            if state.is_complete:
                self._finish(state, consumed=consumed)
                continue
            copied = () if state.ready else state.inbox.copy_out()
            if consumed or copied:
                self._outputs.append(StageOutput(request_id, consumed=consumed, copied=copied))

    def _hand_over(self, state: RequestState, shown: MultimodalPayload) -> None:
        """One of a request's finished pictures; with the last of them it ends, unless a source still has something to say."""
        state.left -= 1
        if state.is_complete:
            self._finish(state, shown)
        else:
            self._outputs.append(StageOutput(state.request.request_id, shown))

    def _finish(self, state: RequestState, shown: MultimodalPayload | None = None, consumed: Consumed = ()) -> None:
        request_id = state.request.request_id
        self._forget(request_id)
        times = state.times(self._clock())
        self._outputs.append(StageOutput(request_id, shown, consumed, "done", state.usage(), times))

    def _forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self._touched.pop(request_id, None)
        self._seats.remove(request_id)

    def _note_call(self, request_ids: Iterable[str], began_s: float) -> None:
        """A call of the model for them has ended."""
        ended_s = self._clock()
        for request_id in request_ids:
            self._requests[request_id].calls.append((began_s, ended_s))
