"""One stage in one step thread: messages in, reports out, an engine, an emitter and nothing else between.

    handle(mail)  ->  engine.add / feed / cancel, emitter credit
    step()        ->  engine.step  ->  emitter  ->  [Emitted, Consumed, CopiedOut, StageDone, StageFailed, CancelDone, ControlDone]

`handle`, `step`, `room_freed` and `has_work` belong to the step thread; the rest (interrupt, gauges, debug_state) may be called
from any.
Mail of another attempt than the one held is answered (Cancel) or dropped: its references are the machine's to release.
The loop never dies of a request. An engine that raises outside any request's fault fails all requests in it, is
told to forget them, and goes on; how often that happened is a gauge.
Knows nothing of sockets, processes or how a payload was fetched.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omnistage.config.stage import StageConfig
from omnistage.connectors.base import Connectors
from omnistage.core.errors import ErrorInfo, UnsupportedByModelError
from omnistage.core.payload import MultimodalPayload
from omnistage.stages.base import ControlledEngine, PreparedInput, StageEngine, StageOutput, StageRequest
from omnistage.stages.emitter import Emitter, Select
from omnistage.wire.messages import (
    Cancel,
    CancelDone,
    Consumed,
    Control,
    ControlDone,
    CopiedOut,
    Feed,
    Grant,
    StageFailed,
    Submit,
    WorkerEvent,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fed:
    """A Feed whose payload has been fetched, or could not be (`error`)."""

    feed: Feed
    payload: MultimodalPayload | None = None
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A Submit whose input was prepared outside the stage, or could not be (`error`)."""

    submit: Submit
    prepared: PreparedInput | None = None
    error: ErrorInfo | None = None


Mail = Submit | Prepared | Fed | Grant | Cancel | Control
"""What reaches a stage."""


class StageHost:
    """See the module. `selects` holds the loaded select hooks by target stage (stages.build)."""

    def __init__(
        self,
        config: StageConfig,
        engine: StageEngine,
        connectors: Connectors,
        selects: Mapping[int, Select] | None = None,
    ) -> None:
        self.config = config
        self._engine = engine
        self._emitter = Emitter(
            config.outputs,
            connectors,
            stage=config.model_stage,
            final_output_type=config.final_output_type,
            selects=selects,
            max_gathered_nbytes=config.max_input_nbytes,
        )
        self._held: dict[str, StageRequest] = {}
        self._blocked: set[str] = set()
        self._answers: list[WorkerEvent] = []
        self._must_pump = False
        self._step_failures = 0
        self._steps = 0
        self._steps_s = 0.0
        self.engine_stepped = False
        self._gauges = self._figures()

    # ---- any thread ------------------------------------------------------------------------------------------------

    def interrupt(self, request_id: str) -> None:
        """Asks a running step to end early if it works for this request alone."""
        self._engine.interrupt(request_id)

    def gauges(self) -> dict[str, float]:
        """The figures as they were measured last."""
        return self._gauges

    def debug_state(self) -> dict[str, Any]:
        """What is held: requests and outputs as they are now, the engine's figures as they were measured last."""
        return {
            "requests": sorted(self._held),
            "blocked": len(self._blocked),
            "answers": len(self._answers),
            **self._emitter.figures(),
            **self._gauges,
        }

    # ---- step thread -----------------------------------------------------------------------------------------------

    def handle(self, mail: Mail) -> None:
        """Takes over one piece of mail. Never raises for a request's fault; answers come from the next `step`."""
        match mail:
            case Submit():
                self._submit(Prepared(mail))
            case Prepared():
                self._submit(mail)
            case Fed(feed=feed):
                self._feed(feed, mail.payload, mail.error)
            case Grant():
                if self._holds(mail.request_id, mail.attempt):
                    self._emitter.grant(mail.request_id, mail.target, mail.credits)
                    self._must_pump = True
            case Cancel():
                self._cancel(mail)
            case Control():
                self._answers.append(self._control(mail))

    def room_freed(self) -> None:
        """A reference was released: what was refused for want of room is tried again."""
        self._must_pump = self._must_pump or self._emitter.wants_room

    def has_work(self) -> bool:
        return bool(self._answers) or self._must_pump or self._engine.has_work()

    def step(self) -> list[WorkerEvent]:
        """One step of the engine and everything it has to say; answers to earlier mail first."""
        events, self._answers = self._answers, []
        for output in self._engine_step(events):
            events.extend(self._take(output))
        events.extend(self._pump())
        return events

    def measure(self) -> None:
        """Takes the figures anew; apart from `step`, so that what it said is not kept waiting."""
        self._gauges = self._figures()

    def _figures(self) -> dict[str, float]:
        return {
            **self._engine.gauges(),
            "steps_total": self._steps,
            "step_seconds_total": self._steps_s,
            "step_failures": self._step_failures,
            "held": len(self._held),
        }

    def _submit(self, mail: Prepared) -> None:
        message = mail.submit
        request_id = message.request.request_id
        held = self._held.get(request_id)
        if held is not None:
            if held.attempt >= message.attempt:
                return
            self._forget(held)
        request = StageRequest(
            message.request,
            message.attempt,
            message.stage_id,
            message.order,
            frozenset(message.active_targets),
            mail.prepared,
        )
        if mail.error is not None:
            self._answers.append(self._fail(request, mail.error))
            return
        self._held[request_id] = request
        try:
            self._emitter.open(request, message.windows)
            self._engine.add(request)
        except Exception as error:  # noqa: BLE001 - whatever an engine makes of a request is that request's fault
            self._answers.append(self._fail(request, self._error(error)))

    def _feed(self, feed: Feed, payload: MultimodalPayload | None, error: ErrorInfo | None) -> None:
        request = self._held.get(feed.request_id)
        if request is None or request.attempt != feed.attempt:
            return
        if error is None:
            try:
                self._engine.feed(feed.request_id, feed.source, feed.seq, payload, last=feed.last)
            except Exception as raised:  # noqa: BLE001 - whatever an engine makes of an item is its request's fault
                error = self._error(raised)
        if error is not None:
            self._answers.append(self._fail(request, error))

    def _cancel(self, message: Cancel) -> None:
        held = self._held.get(message.request_id)
        if held is not None and held.attempt == message.attempt:
            self._forget(held)
        self._answers.append(
            CancelDone(request_id=message.request_id, attempt=message.attempt, stage_id=message.stage_id)
        )

    def _control(self, message: Control) -> ControlDone:
        result, error = None, None
        try:
            if message.name == "debug_state":  # where no IO thread has answered already (inline)
                return ControlDone(
                    call_id=message.call_id, stage_id=message.stage_id, result={"stage": self.debug_state()}
                )
            if not isinstance(self._engine, ControlledEngine):
                raise UnsupportedByModelError(
                    f"stage {self.config.model_stage} carries out no control calls; asked for: {message.name}",
                    stage=self.config.model_stage,
                )
            result = self._engine.control(message.name, message.arguments)
        except Exception as raised:  # noqa: BLE001 - a control call answers its caller and disturbs nobody else
            error = self._error(raised)
        return ControlDone(call_id=message.call_id, stage_id=message.stage_id, result=result, error=error)

    def _engine_step(self, events: list[WorkerEvent]) -> list[StageOutput]:
        if not self._engine.has_work():
            return []
        begun_s = time.perf_counter()
        try:
            outputs = self._engine.step()
            self._steps += 1
            self._steps_s += time.perf_counter() - begun_s
            self.engine_stepped = True
            return outputs
        except Exception as error:
            self._step_failures += 1
            log.exception("a step failed outside any request", extra={"stage": self.config.model_stage})
            inside = [request for key, request in self._held.items() if not self._emitter.has_ended(key)]
            events.extend(self._fail(request, self._error(error)) for request in inside)
            return []

    def _take(self, output: StageOutput) -> list[WorkerEvent]:
        """What a step did for one request, as far as it can be said before anything is put."""
        request = self._held.get(output.request_id)
        if request is None:
            return []
        if output.error is not None:
            return [self._fail(request, output.error)]
        try:
            if output.capture is not None:
                self._emitter.gather(request.request_id, output.capture)
        except Exception as error:  # noqa: BLE001 - a capture that cannot be sent fails its own request
            return [self._fail(request, self._error(error))]
        if output.finish_reason is not None:
            self._emitter.end(request.request_id, output)
            self._blocked.discard(request.request_id)  # the engine knows it no more
        if not (output.consumed or output.copied):
            return []
        return [*_told(Consumed, request, output.consumed), *_told(CopiedOut, request, output.copied)]

    def _pump(self) -> list[WorkerEvent]:
        self._must_pump = False
        pumped = self._emitter.pump(is_idle=not self._engine.has_work())
        events: list[WorkerEvent] = [*pumped.events]
        events.extend(self._fail(request, error) for request, error in pumped.failed)
        for request_id in [held for held in self._held if held not in self._emitter]:
            del self._held[request_id]
        self._tell_readiness()
        return events

    def _tell_readiness(self) -> None:
        blocked = self._emitter.blocked()
        if blocked == self._blocked:
            return
        for request_id in sorted(blocked - self._blocked):
            self._engine.set_ready(request_id, False)
        for request_id in sorted(self._blocked - blocked):
            self._engine.set_ready(request_id, True)
        self._blocked = blocked

    def _holds(self, request_id: str, attempt: int) -> bool:
        held = self._held.get(request_id)
        return held is not None and held.attempt == attempt

    def _fail(self, request: StageRequest, error: ErrorInfo) -> StageFailed:
        self._forget(request)
        return StageFailed(
            request_id=request.request_id, attempt=request.attempt, stage_id=request.stage_id, error=error
        )

    def _forget(self, request: StageRequest) -> None:
        """Slots, blocks, gathered parts: nothing is left of the request."""
        request_id = request.request_id
        self._held.pop(request_id, None)
        self._emitter.close(request_id)
        self._blocked.discard(request_id)
        try:
            self._engine.cancel(request_id)
        except Exception:
            told = {"request": request_id, "stage": self.config.model_stage, "attempt": request.attempt}
            log.exception("a request could not be forgotten", extra=told)

    def _error(self, error: Exception) -> ErrorInfo:
        return ErrorInfo.of(error, stage=self.config.model_stage)


def _told(
    kind: type[Consumed | CopiedOut], request: StageRequest, upto: tuple[tuple[int, int], ...]
) -> list[Consumed | CopiedOut]:
    """One message per source of `upto`."""
    return [
        kind(request_id=request.request_id, attempt=request.attempt, source=source, target=request.stage_id, seq=seq)
        for source, seq in upto
    ]
