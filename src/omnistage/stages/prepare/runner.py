"""The helper processes of one entry stage: requests in, prepared inputs out, as mail for the stage's step thread.

    submit -> [cache] -> [waiting, in the total order] -> a helper that is free -> post(Prepared)

Lives in the worker's main thread and never waits there. A helper that dies is started anew and its request prepared again, once
(prepare.scheduler); one that prepares a request for longer than the stage's `step_timeout_s` is killed, and that request fails. A
helper that cannot be started three times in a row ends the stage. Times are seconds of `clock`.
"""

from __future__ import annotations

import functools
import logging
import math
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from omnistage.config.stage import StageConfig
from omnistage.core.errors import ErrorInfo, StageFailedError
from omnistage.obs.process import child_figures
from omnistage.stages.base import PreparedInput
from omnistage.stages.host import Prepared
from omnistage.stages.prepare.cache import PreparedCache, content_key
from omnistage.stages.prepare.coding import decode
from omnistage.stages.prepare.messages import (
    SLACK_NBYTES,
    Answer,
    FromHelper,
    HelperFailed,
    HelperReady,
    Prepare,
    frame,
)
from omnistage.stages.prepare.process import HelperProcess
from omnistage.stages.prepare.scheduler import JobState, PrepareScheduler
from omnistage.wire.messages import Submit

log = logging.getLogger(__name__)

MOST_STRIKES = 3
"""So many helpers may end in a row before one has loaded its processor."""

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_FROM_HELPER: msgspec.msgpack.Decoder[FromHelper] = msgspec.msgpack.Decoder(FromHelper)


class Helper(Protocol):
    """What this uses of a HelperProcess."""

    line: socket.socket
    pidfd: int
    is_silent: bool

    @property
    def pid(self) -> int: ...

    def send(self, data: bytes) -> None: ...

    def flush(self) -> bool: ...

    def receive(self) -> list[bytes]: ...

    def kill(self) -> None: ...

    def close(self) -> str: ...


def start_helper(config: StageConfig) -> Helper:
    """A helper of this stage; OSError if there is none to be had."""
    return HelperProcess(frame(config), 2 * SLACK_NBYTES + config.max_input_nbytes)


@dataclass(slots=True)
class _HelperState:
    """One helper. `ready`: it has loaded. `killed`: it is as good as dead."""

    process: Helper
    started_s: float
    ready: bool = False
    killed: bool = False


class PrepareRunner:
    """See the module. `post` takes the mail, `failed` hears why the stage cannot go on, `readied` when all helpers have loaded."""

    def __init__(
        self,
        config: StageConfig,
        *,
        post: Callable[[Prepared], None],
        failed: Callable[[Exception], None],
        readied: Callable[[], None],
        start: Callable[[StageConfig], Helper] = start_helper,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._post = post
        self._failed = failed
        self._readied = readied
        self._launch = start
        self._clock = clock
        self._scheduler = PrepareScheduler()
        self._cache = PreparedCache()
        self._helpers: dict[int, _HelperState] = {}
        self._selector: selectors.BaseSelector | None = None
        self._strikes = 0
        self._restarts = 0
        self.ready = False

    # ---- what the worker asks ----------------------------------------------------------------------------------------

    def open(self, selector: selectors.BaseSelector) -> None:
        """Starts the helpers; what they say is heard by `selector`, whose keys' data are to be called."""
        self._selector = selector
        for number in range(self._config.processor_workers):
            self._start(number)

    def submit(self, message: Submit) -> None:
        """Prepares a request; it reaches the stage as mail when that is done, or has failed."""
        self._scheduler.drop(message.request.request_id)
        job = JobState(message, content_key(message.request.prompt), self._clock())
        if not self._finish_from_cache(job):
            self._scheduler.add(job)
            self._assign()

    def cancel(self, request_id: str, attempt: int) -> None:
        """Nothing of this attempt is posted any more."""
        self._scheduler.drop(request_id, attempt)

    @property
    def deadline(self) -> float:
        """When `turn` is due."""
        return min((self._limit(number)[0] for number in self._helpers), default=math.inf)

    def turn(self, now_s: float) -> None:
        """Kills what is overdue."""
        for number, helper in self._helpers.items():
            due_s, why = self._limit(number)
            if now_s < due_s:
                continue
            log.warning("helper process %d: %s; it is killed", helper.process.pid, why, extra=self._told)
            job = self._scheduler.inside_of(number)
            if job is not None and not job.dropped:
                job.dropped = True
                self._fail(job, StageFailedError(why))
            helper.killed = True
            helper.process.kill()

    def close(self) -> None:
        """No helper is left when this returns."""
        for number in list(self._helpers):
            self._bury(number)

    def gauges(self) -> dict[str, float]:
        return {
            "preparing": self._scheduler.waiting + self._scheduler.inside,
            "prepared_hits_total": self._cache.hits,
            "prepared_misses_total": self._cache.misses,
            "prepared_cache_nbytes": self._cache.nbytes,
            "helper_restarts_total": self._restarts,
        }

    def debug_state(self) -> dict[str, Any]:
        """The helpers as processes, by number, each with the request that it has."""
        return {**self.gauges(), "helpers": {str(number): self._described(number) for number in sorted(self._helpers)}}

    # ---- helpers -----------------------------------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        assert self._selector is not None
        try:
            process = self._launch(self._config)
        except OSError as error:
            self._failed(StageFailedError(f"the helper process that prepares inputs cannot be started: {error}"))
            return
        helper = self._helpers[number] = _HelperState(process, self._clock())
        self._selector.register(process.line, _READ, functools.partial(self._spoken, number, helper))
        self._selector.register(process.pidfd, _READ, functools.partial(self._died, number, helper))

    def _spoken(self, number: int, helper: _HelperState) -> None:
        """It has said something, or takes more of what it is told."""
        if self._helpers.get(number) is helper:  # its death may have been noticed at the same moment
            self._hear(number, helper)
            self._watch(helper)

    def _hear(self, number: int, helper: _HelperState) -> None:
        messages = helper.process.receive()
        helper.killed = helper.killed or helper.process.is_silent
        for data in messages:
            self._take(number, helper, data)

    def _watch(self, helper: _HelperState) -> None:
        """Waits for its words, and for room in its line while something is left to be sent."""
        assert self._selector is not None
        line = helper.process.line
        if helper.process.is_silent:
            if line.fileno() in self._selector.get_map():
                self._selector.unregister(line)
            return
        wanted = _READ | _WRITE if helper.process.flush() else _READ
        key = self._selector.get_key(line)
        if key.events != wanted:
            self._selector.modify(line, wanted, key.data)

    def _take(self, number: int, helper: _HelperState, data: bytes) -> None:
        try:
            message = _FROM_HELPER.decode(data)
        except msgspec.MsgspecError as error:
            log.error("helper process %d: %s; it is killed", helper.process.pid, error, extra=self._told)
            helper.killed = True
            helper.process.kill()
            return
        match message:
            case HelperReady():
                helper.ready, self._strikes = True, 0
                if not self.ready and self._all_ready:
                    self.ready = True
                    self._readied()
            case HelperFailed():
                self._failed(message.error.to_exception())
                return
            case Answer():
                self._answered(self._scheduler.done(number), message)
        self._assign()

    @property
    def _all_ready(self) -> bool:
        ready = [helper.ready for helper in self._helpers.values()]
        return all(ready) and len(ready) == self._config.processor_workers

    def _died(self, number: int, helper: _HelperState) -> None:
        """What it has said before counts; then its request is prepared again or fails, and another helper takes its place."""
        helper.killed = True
        self._hear(number, helper)
        how = self._bury(number)
        log.warning("the helper process that prepares inputs %s", how, extra=self._told)
        job = self._scheduler.died(number)
        if job is not None:
            told = f"the helper process that prepares inputs {how}, {job.deaths} times, while it prepared this request"
            self._fail(job, StageFailedError(told))
        self._restarts += 1
        self._strikes += not helper.ready
        if self._strikes >= MOST_STRIKES:
            told = f"the helper process that prepares inputs {how} before it was ready, {self._strikes} times"
            self._failed(StageFailedError(told))
            return
        self._start(number)
        self._assign()

    def _bury(self, number: int) -> str:
        assert self._selector is not None
        process = self._helpers.pop(number).process
        for descriptor in (process.line.fileno(), process.pidfd):
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        return process.close()

    def _limit(self, number: int) -> tuple[float, str]:
        """When a helper has taken too long, and with what."""
        helper, job = self._helpers[number], self._scheduler.inside_of(number)
        if helper.killed or (helper.ready and job is None):
            return math.inf, ""
        if job is None:
            limit_s = self._config.start_timeout_s
            return helper.started_s + limit_s, f"the processor was not loaded within {limit_s:g} s (start_timeout_s)"
        limit_s = self._config.step_timeout_s
        return job.begun_s + limit_s, f"its input was not prepared within {limit_s:g} s (step_timeout_s)"

    def _described(self, number: int) -> dict[str, Any]:
        helper, job = self._helpers[number], self._scheduler.inside_of(number)
        state = "ended" if helper.killed else "ready" if helper.ready else "starting"
        prepares = [] if job is None or job.dropped else [job.request_id]
        return {**child_figures(helper.process.pid), "state": state, "prepares": prepares}

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _assign(self) -> None:
        """Gives the oldest to helpers that are free."""
        while (job := self._scheduler.first()) is not None:
            number = next((number for number in self._helpers if self._is_free(number)), None)
            if number is None:
                return
            self._scheduler.take_first()
            if self._finish_from_cache(job):
                continue  # another with the same prompt has been prepared meanwhile
            self._cache.misses += 1
            self._scheduler.begin(number, job, self._clock())
            helper = self._helpers[number]
            helper.process.send(frame(Prepare(request=job.submit.request)))
            self._watch(helper)

    def _is_free(self, number: int) -> bool:
        helper = self._helpers[number]
        return helper.ready and not helper.killed and self._scheduler.inside_of(number) is None

    def _answered(self, job: JobState | None, answer: Answer) -> None:
        if job is None:
            return
        if answer.error is not None:
            self._post(Prepared(job.submit_of_stage, error=answer.error))
            return
        if answer.repeatable:
            self._cache.put(job.key, answer.value)
        self._finish(job, answer.value, answer.took_s)

    def _finish_from_cache(self, job: JobState) -> bool:
        value = self._cache.get(job.key)
        if value is not None:
            self._finish(job, value, 0.0)
        return value is not None

    def _finish(self, job: JobState, value: bytes, took_s: float) -> None:
        try:
            made = PreparedInput(decode(value), took_s, self._clock() - job.since_s)
        except Exception as error:  # noqa: BLE001 - what cannot be read is its request's failure
            self._fail(job, error)
        else:
            self._post(Prepared(job.submit_of_stage, made))

    def _fail(self, job: JobState, error: Exception) -> None:
        self._post(Prepared(job.submit_of_stage, error=ErrorInfo.of(error, stage=self._config.model_stage)))

    @property
    def _told(self) -> dict[str, str]:
        return {"stage": self._config.model_stage}
