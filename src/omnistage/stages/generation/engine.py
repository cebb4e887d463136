"""The engine of generation stages: bridge what has come, seat, batch, run, commit.

    feed -> inbox -> [scheduler] -> model.run([(input, state), ...]) -> (what was made, new state), committed together

A request's state is a value: it changes only after the whole run has succeeded, so a run that failed or was interrupted
has not happened. A batch that fails is run again one by one, once; only those that fail alone fail. A run that ends
early on request leaves everything as it was: the cancel that asked for it comes with the next mail, and whoever shared
no fault runs again. Works with any model of the protocol; knows no torch, no sockets, no other stage.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from omnistage.config.stage import GenerationStageConfig
from omnistage.core.errors import StageFailedError
from omnistage.core.payload import MultimodalPayload
from omnistage.core.request import StageTimes, Usage
from omnistage.modeling.protocols import Bridge, GenerationModel, GenerationProcessor, Interrupted, StageInput
from omnistage.stages.base import PreparedInput, StageOutput, StageRequest
from omnistage.stages.generation.scheduler import GenerationScheduler, Work
from omnistage.stages.inbox import InboxState
from omnistage.stages.seated import SeatedEngine

log = logging.getLogger(__name__)

MAX_INTERRUPTIONS = 8
"""Runs in a row that may end early without a cancel for the request; then it fails rather than run for ever."""


@dataclass(slots=True)
class GenerationState:
    """One request. `model_state` is the model's value (`begun` says whether there is one). Times in seconds; `added_s` is when it
    came to the stage, before its input was prepared.
    `samples` counts what was made, by sample rate in Hz: whole numbers, so that seconds come out exact."""

    request: StageRequest
    inbox: InboxState
    added_s: float
    prepare_s: float | None = None
    model_state: Any = None
    begun: bool = False
    ready: bool = True
    first_step_s: float | None = None
    forward_s: float = 0.0
    samples: dict[int, int] = field(default_factory=dict)
    interruptions: int = 0


Made = tuple[MultimodalPayload | None, Any]


class GenerationEngine(SeatedEngine[GenerationState]):
    """A StageEngine (stages.base). `bridge` is None in an entry stage, `processor` in all others."""

    def __init__(
        self,
        config: GenerationStageConfig,
        model: GenerationModel,
        bridge: Bridge | None = None,
        processor: GenerationProcessor | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._model = model
        self._bridge = bridge
        self._processor = processor
        self._clock = clock
        self._scheduler = GenerationScheduler(slots=config.max_num_seqs, budget=config.max_num_batched_tokens)
        super().__init__(config.model_stage, self._scheduler)
        self._running: tuple[str, ...] = ()
        self._interrupted: set[str] = set()
        self._running_lock = threading.Lock()
        self._parked_total = 0
        self._rerun_total = 0

    # ---- any thread ------------------------------------------------------------------------------------------------

    def interrupt(self, request_id: str) -> None:
        """Kept until its cancel is read: a step that was about to run the request when this came does not begin the run."""
        with self._running_lock:
            if request_id in self._requests:
                self._interrupted.add(request_id)
            if self._running == (request_id,):
                self._model.interrupt()

    # ---- step thread -----------------------------------------------------------------------------------------------

    def add(self, request: StageRequest) -> None:
        try:
            prepared = request.prepared if self._processor is None else request.prepared_by(self._processor)
            inbox = self._open_inbox(request, prepared)
        except Exception as error:  # noqa: BLE001 - whatever a processor makes of a request is that request's fault
            self._outputs.append(self._failed(request.request_id, error))
            return
        state = self._requests[request.request_id] = GenerationState(request, inbox, self._clock())
        if prepared is not None:
            state.added_s, state.prepare_s = state.added_s - prepared.elapsed_s, prepared.prepare_s
        self._scheduler.add(request.request_id, request.order)
        self._touched[request.request_id] = None

    def has_work(self) -> bool:
        return bool(self._outputs or self._touched) or self._scheduler.can_run()

    def step(self) -> list[StageOutput]:
        self._bridge_touched()
        self._seat()
        batch = self._scheduler.form_batch(self._work())
        if batch:
            self._commit(self._run(batch))
        outputs, self._outputs = self._outputs, []
        return outputs

    def gauges(self) -> dict[str, float]:
        return {
            "running": self._scheduler.running,
            "waiting": self._scheduler.waiting,
            "parked_total": self._parked_total,
            "rerun_total": self._rerun_total,
            "input_nbytes": sum(state.inbox.nbytes for state in self._requests.values()),
        }

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def _open_inbox(self, request: StageRequest, prepared: PreparedInput | None) -> InboxState:
        stage, limit = self._config.model_stage, self._config.max_input_nbytes
        if self._bridge is not None:
            return InboxState(
                self._bridge,
                self._config.input_sources,
                stage=stage,
                window=self._config.input_window,
                max_input_nbytes=limit,
            )
        inputs = [StageInput({"request": request.request})] if prepared is None else prepared.value
        return InboxState.of_entry(inputs, stage=stage, max_input_nbytes=limit)

    def _bridge_touched(self) -> None:
        """Bridges what has come, and ends requests that were told their last item and have nothing left to do."""
        touched, self._touched = list(self._touched), {}
        for request_id in touched:
            consumed = self._advance(request_id)
            state = self._requests.get(request_id)
            if state is None:
                continue
            if state.inbox.exhausted:
                self._finish(state, None, consumed)
                continue
            copied = () if state.ready else state.inbox.copy_out()
            if consumed or copied:
                self._outputs.append(StageOutput(request_id, consumed=consumed, copied=copied))

    def _advance(self, request_id: str) -> tuple[tuple[int, int], ...]:
        """Bridges what may be bridged of one request; a bridge that fails fails it."""
        state = self._requests[request_id]
        try:
            consumed = state.inbox.advance()
        except Exception as error:  # noqa: BLE001 - whatever a bridge raises is its request's fault
            self._fail(request_id, error)
            return ()
        self._scheduler.set_input(request_id, state.inbox.unused > 0)
        return consumed

    # ---- runs ------------------------------------------------------------------------------------------------------

    def _seat(self) -> None:
        """Gives slots; who gets the first one begins. A request whose parameters the model refuses fails."""
        seating = self._scheduler.seat()
        self._parked_total += len(seating.parked)
        for request_id in seating.seated:
            state = self._requests[request_id]
            if state.begun:
                continue
            try:
                state.model_state = self._model.begin(state.request.request, self._params(state.request))
            except Exception as error:  # noqa: BLE001 - a request that cannot begin fails, whatever the model raised
                self._fail(request_id, error)
            else:
                state.begun = True
                state.first_step_s = self._clock()

    def _params(self, request: StageRequest) -> Any:
        return request.request.stage_params.get(self._config.stage_id, self._config.default_sampling_params)

    def _work(self) -> dict[str, Work]:
        """Cost and batch key of the next input of every candidate."""
        work: dict[str, Work] = {}
        for request_id in self._scheduler.candidates():
            chunk, model_state = self._pair(request_id)
            try:
                work[request_id] = Work(self._model.cost(chunk), self._model.batch_key(chunk, model_state))
            except Exception as error:  # noqa: BLE001 - an input that cannot be weighed fails its own request
                self._fail(request_id, error)
        return work

    def _pair(self, request_id: str) -> tuple[Any, Any]:
        state = self._requests[request_id]
        unit = state.inbox.peek()
        assert unit is not None, "a candidate has an unused input"
        return unit.data, state.model_state

    def _run(self, batch: tuple[str, ...]) -> dict[str, Made]:
        """What the model made for each request of the batch that did not fail and was not interrupted."""
        try:
            return self._call_model(batch)
        except Interrupted:
            self._note_interruption(batch)
            return {}
        except Exception as error:  # noqa: BLE001 - who is at fault shows when each runs alone
            if len(batch) == 1:
                self._fail(batch[0], error)
                return {}
            told = {"stage": self._stage}
            log.warning("a batch of %d failed and runs one by one: %s", len(batch), error, extra=told)
        self._rerun_total += 1
        made: dict[str, Made] = {}
        for request_id in batch:
            made.update(self._run((request_id,)))
        return made

    def _call_model(self, batch: tuple[str, ...]) -> dict[str, Made]:
        pairs = [self._pair(request_id) for request_id in batch]
        began_s = self._clock()
        with self._running_lock:
            if self._interrupted.issuperset(batch):
                raise Interrupted
            self._running = batch
        try:
            results = self._model.run(pairs)
        finally:
            with self._running_lock:
                self._running = ()
            took_s = self._clock() - began_s
            for request_id in batch:
                self._requests[request_id].forward_s += took_s
        if len(results) != len(batch):
            raise StageFailedError(
                f"the model of stage {self._stage} made {len(results)} results of {len(batch)} inputs",
                stage=self._stage,
            )
        return dict(zip(batch, results, strict=True))

    def _note_interruption(self, batch: tuple[str, ...]) -> None:
        for request_id in batch:
            state = self._requests[request_id]
            state.interruptions += 1
            if state.interruptions >= MAX_INTERRUPTIONS:
                error = StageFailedError(f"a run was ended early {MAX_INTERRUPTIONS} times", stage=self._stage)
                self._fail(request_id, error)

    # ---- outcomes --------------------------------------------------------------------------------------------------

    def _commit(self, made: dict[str, Made]) -> None:
        for request_id, (capture, model_state) in made.items():
            state = self._requests[request_id]
            state.model_state = model_state
            state.interruptions = 0
            state.inbox.take()
            if capture is not None:
                _count_samples(state.samples, capture)
            consumed = self._advance(request_id)
            if request_id not in self._requests:
                continue  # its bridge failed
            if state.inbox.exhausted:
                self._finish(state, capture, consumed)
            else:
                self._outputs.append(StageOutput(request_id, capture, consumed))

    def _finish(
        self, state: GenerationState, capture: MultimodalPayload | None, consumed: tuple[tuple[int, int], ...]
    ) -> None:
        request_id = state.request.request_id
        now_s = self._clock()
        began_s = now_s if state.first_step_s is None else state.first_step_s
        times = StageTimes(
            queued_s=began_s - state.added_s,
            prepare_s=state.prepare_s,
            running_s=now_s - began_s,
            forward_s=state.forward_s,
        )
        usage = Usage(audio_seconds=sum(count / rate for rate, count in state.samples.items()))
        self._forget(request_id)
        self._outputs.append(StageOutput(request_id, capture, consumed, "done", usage, times))

    def _forget(self, request_id: str) -> None:
        """Frees everything a request holds, but not what it still has to say."""
        with self._running_lock:  # nobody interrupts from here on what is gone
            self._requests.pop(request_id, None)
            self._interrupted.discard(request_id)
        self._touched.pop(request_id, None)
        self._scheduler.remove(request_id)


def _count_samples(samples: dict[int, int], capture: MultimodalPayload) -> None:
    """Adds the rows of the tensor `audio` ([samples, ...]), if there is one, at the metadata's `sample_rate`."""
    audio = capture.tensors.get("audio")
    rate = capture.metadata.get("sample_rate")
    if audio is not None and rate:
        samples[rate] = samples.get(rate, 0) + audio.spec.shape[0]
