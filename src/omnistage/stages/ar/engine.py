"""The engine of an autoregressive stage: schedule, run, commit.

An entry stage turns a request's prompt into tokens by its processor when the request is added; another stage is fed
through its bridge, whose inputs (`token_ids`, or `embeds` [rows, hidden]) are appended to the prompt until every source
has sent its last item. Then each choice samples until it ends. What a step did for a request is one StageOutput: the
choices' new text and tokens as metadata, captured hidden states as tensors `hidden_<layer>` [rows, hidden] of the step's
wanted positions (metadata "positions": first and one past the last of each span). The first that goes to other stages also has
what the processor hands on of the prompt (metadata "prompt", and arrays by name).

Media of a prompt are encoded before it is computed, in steps of their own that take turns with the others.

A batched forward pass that fails is run again, row by row, once; only requests that fail alone fail. Knows nothing of
sockets, other stages or the orchestrator.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from omnistage.config.stage import ARStageConfig
from omnistage.core.errors import ErrorInfo, OmniError, StageFailedError, UnsupportedByModelError
from omnistage.core.payload import MultimodalPayload
from omnistage.modeling.protocols import Bridge, FramedModel, MediaInput, Processor
from omnistage.modeling.tensors import TorchSource
from omnistage.stages.ar.admission import Admission
from omnistage.stages.ar.captured import CapturedRows, Layers, joined
from omnistage.stages.ar.choice import STOP, SampledToken
from omnistage.stages.ar.encoding import MediaEncoder
from omnistage.stages.ar.feeding import Feeding
from omnistage.stages.ar.frames import FrameSource
from omnistage.stages.ar.own_rows import Piece
from omnistage.stages.ar.plan import PlanRow, SequenceKey, StepPlan
from omnistage.stages.ar.requests import RequestState, StepReport
from omnistage.stages.ar.runner import ARRunner, RowResult
from omnistage.stages.ar.scheduler import Scheduler
from omnistage.stages.ar.sequence import SequenceState
from omnistage.stages.base import StageOutput, StageRequest
from omnistage.stages.encoding_queue import EncodingQueue

log = logging.getLogger(__name__)


class ARStageEngine:
    """A `stages.base.StageEngine`. The processor also brings the tokenizer that turns tokens into text."""

    def __init__(
        self,
        config: ARStageConfig,
        scheduler: Scheduler,
        runner: ARRunner,
        captured: CapturedRows,
        *,
        vocab_size: int,
        processor: Processor | None = None,
        bridge: Bridge | None = None,
        captures: bool = False,
        framed: FramedModel | None = None,
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._runner = runner
        self._captured = captured
        self._encoder = MediaEncoder(runner, config.model_stage)
        self._unencoded = EncodingQueue[MediaInput](config.max_num_batched_tokens)
        self._has_encoded = False  # in the last step
        self._admission = Admission(
            config,
            scheduler,
            runner,
            vocab_size=vocab_size,
            processor=processor,
            bridge=bridge,
            captures=captures,
            framed=framed,
        )
        self._feeding = Feeding(config, scheduler, runner, self._admission, vocab_size=vocab_size)
        self._requests: dict[str, RequestState] = {}
        self._reports: dict[str, StepReport] = {}
        self._num_reruns = 0

    @property
    def computes_with(self) -> str:
        """The name of the operations that steps are computed with."""
        return self._runner.ops.name

    # ---- StageEngine -----------------------------------------------------------------------------------------------

    def add(self, request: StageRequest) -> None:
        """Takes a request over. What it cannot serve comes back from the next step as an error."""
        if not self._requests:
            self._runner.renew()
        try:
            state = self._admission.admit(request)
        except OmniError as error:
            self._report(request.request_id).error = self._error(error)
            return
        self._requests[request.request_id] = state
        state.encoded = {one.key: found for one in state.media if (found := self._encoder.known(one)) is not None}
        missing = [one for one in state.media if one.key not in state.encoded]
        if missing:
            self._unencoded.add(request.request_id, request.order, missing)
        else:
            self._enter(state)

    def feed(self, request_id: str, source: int, seq: int, item: MultimodalPayload | None, *, last: bool) -> None:
        """Input for a request; the bridge runs here or in a later `step`."""
        state = self._requests.get(request_id)
        if state is None or state.inbox is None:
            return
        try:
            state.inbox.feed(source, seq, item, last=last)
        except OmniError as error:
            self._fail(state, error)
            return
        self._take_or_fail(state)

    def cancel(self, request_id: str) -> None:
        """Forgets a request at once. Unknown ids are fine."""
        self._reports.pop(request_id, None)
        self._unencoded.remove(request_id)
        state = self._requests.pop(request_id, None)
        for sequence in state.sequences if state is not None else ():
            self._leave(sequence.key)

    def interrupt(self, request_id: str) -> None:
        """A step works for many requests and is short: it is never ended early for one."""

    def set_ready(self, request_id: str, ready: bool) -> None:
        """See `StageEngine`."""
        state = self._requests.get(request_id)
        if state is None:
            return
        state.ready = ready
        for sequence in state.sequences:
            sequence.ready = ready  # it may be that the scheduler does not know it yet
            self._scheduler.set_ready(sequence.key, ready)
        self._copy_out(state)

    def has_work(self) -> bool:
        """True if `step` could do something now."""
        return (
            bool(self._reports)
            or len(self._unencoded) > 0
            or self._scheduler.has_work()
            or any(map(self._feeding.can_take, self._requests.values()))
        )

    def step(self) -> list[StageOutput]:
        """Schedule, run, commit."""
        for state in list(self._requests.values()):
            if self._feeding.can_take(state):
                self._take_or_fail(state)
        self._has_encoded = self._is_turn_of_media()
        if self._has_encoded:
            self._encode()
        else:
            self._compute()
        return list(self._outputs())

    def _compute(self) -> None:
        plan = self._scheduler.schedule()
        recalled = {row.key: self._captured.recall(row.recalled) for row in plan.rows if row.recalled}
        begun_s = time.perf_counter()
        results = self._run(plan)
        self._note_times(dict.fromkeys(row.key.request_id for row in plan.rows), begun_s)
        for row, result in results:
            self._commit(row, result, recalled.get(row.key, {}))

    def gauges(self) -> dict[str, float]:
        """Figures for metrics; blocks without the null block."""
        blocks = self._scheduler.blocks
        return {
            "running": self._scheduler.num_running,
            "waiting": self._scheduler.num_waiting + len(self._unencoded),
            "kv_blocks_total": blocks.capacity,
            "kv_blocks_free": blocks.num_free,
            "preemptions": self._scheduler.num_preemptions,
            "prefix_queries_total": self._scheduler.num_prefix_queries,
            "prefix_hits_total": self._scheduler.num_prefix_hits,
            "batches_rerun": self._num_reruns + self._encoder.num_reruns,
            "input_nbytes": sum(state.inbox.nbytes for state in self._requests.values() if state.inbox is not None),
        }

    def control(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """`reset_prefix_cache`: how many cached blocks were forgotten. Raises UnsupportedByModelError for other names."""
        if name != "reset_prefix_cache":
            raise UnsupportedByModelError(f"control call {name}: accepted: reset_prefix_cache")
        self._captured.clear()
        return {"blocks": self._scheduler.blocks.forget()}

    # ---- media -----------------------------------------------------------------------------------------------------

    def _is_turn_of_media(self) -> bool:
        """Steps of both kinds take turns: neither answers nor those who come wait for more than one of the others."""
        return len(self._unencoded) > 0 and not (self._has_encoded and self._scheduler.has_work())

    def _encode(self) -> None:
        batch = self._unencoded.batch()
        begun_s = time.perf_counter()
        made = self._encoder.encode(batch)
        waiting = [(media, found, self._unencoded.requests_of(media.key)) for media, found in made]
        self._note_times(dict.fromkeys(name for _, _, names in waiting for name in names), begun_s)
        for media, found, names in waiting:
            for state in [self._requests[name] for name in names if name in self._requests]:
                if isinstance(found, Exception):
                    self._fail(state, found)
                    continue
                state.encoded[media.key] = found
                if self._unencoded.take(state.request_id, media.key):
                    self._enter(state)

    def _enter(self, state: RequestState) -> None:
        """All that its prompt is made of is there: its sequences may run."""
        pieces: list[Piece] = []
        for media in state.media:
            made, at = state.encoded[media.key], 0
            for start, end in media.spans:
                part = slice(at, at + end - start)
                layered = None if made.layered is None else made.layered[:, part]
                pieces.append(Piece(start, made.rows[part], layered))
                at += end - start
        state.encoded.clear()
        for sequence in state.sequences:
            if pieces:
                self._runner.hold_pieces(sequence.key, pieces)
            self._scheduler.add(sequence)

    # ---- inputs of a stage that is fed -----------------------------------------------------------------------------

    def _take_or_fail(self, state: RequestState) -> None:
        try:
            self._feeding.take(state, self._report(state.request_id))
            self._copy_out(state)
            for sequence in state.sequences if state.is_done else ():
                self._leave(sequence.key)
        except Exception as error:  # noqa: BLE001 - whatever a bridge made of the input is its request's failure
            self._fail(state, error)

    def _copy_out(self, state: RequestState) -> None:
        """A request that may not go on keeps nothing of what it was lent."""
        copied = state.inbox.copy_out() if state.inbox is not None and not state.ready else ()
        if copied:
            report = self._report(state.request_id)
            report.copied = tuple({**dict(report.copied), **dict(copied)}.items())

    # ---- running and committing ------------------------------------------------------------------------------------

    def _note_times(self, request_ids: Iterable[str], begun_s: float) -> None:
        spent_s = time.perf_counter() - begun_s
        for request_id in request_ids:
            state = self._requests[request_id]
            state.begun_s = begun_s if state.begun_s is None else state.begun_s
            state.forward_s += spent_s

    def _run(self, plan: StepPlan) -> list[tuple[PlanRow, RowResult | Exception]]:
        if not plan.rows:
            return []
        try:
            return list(zip(plan.rows, self._launch(plan), strict=True))
        except Exception:
            told = {"stage": self._config.model_stage}
            log.exception("a step of %d rows failed", len(plan.rows), extra=told)
        self._num_reruns += 1
        return [(single.rows[0], self._run_alone(single)) for single in plan.alone()]

    def _run_alone(self, plan: StepPlan) -> RowResult | Exception:
        try:
            return self._launch(plan)[0]
        except Exception as error:  # noqa: BLE001 - whatever fails alone is its request's failure
            return error

    def _launch(self, plan: StepPlan) -> list[RowResult]:
        samples = [self._requests[row.key.request_id].sample_row(row.key.choice) for row in plan.rows if row.samples]
        self._runner.launch(plan, samples)
        return self._runner.collect()

    def _commit(self, row: PlanRow, result: RowResult | Exception, recalled: Layers) -> None:
        state = self._requests.get(row.key.request_id)
        if state is None:
            return  # another choice of the request failed in this step
        if isinstance(result, Exception):
            self._fail(state, result)
            return
        self._scheduler.commit(row)
        if state.handoff:
            self._report(state.request_id).hand_on(state.handoff)
            state.handoff = {}
        sequence = state.sequences[row.key.choice]
        if sequence.capture:
            self._keep_hidden(sequence, row, result.hidden, recalled)
        if result.sampled is None:
            return
        if result.sampled.token is None:
            self._fail(state, StageFailedError("the model's logits are not finite"))
            return
        token = SampledToken(result.sampled.token, result.sampled.logprob, tuple(result.sampled.top))
        choice = state.choices[row.key.choice]
        self._report(state.request_id).choices.append(choice.push(token))
        self._scheduler.append(row.key, [token.token])
        self._keep_frame(state, row, result)
        if choice.finish_reason is not None:
            self._leave(row.key)

    def _keep_frame(self, state: RequestState, row: PlanRow, result: RowResult) -> None:
        """A token that ends its choice begins no frame; one at the length does."""
        sequence = state.sequences[row.key.choice]
        is_end = state.choices[row.key.choice].finish_reason == STOP
        if sequence.frames is None or result.frame is None or is_end:
            return
        sequence.frames.frames.append(result.frame)
        if sequence.capture:
            self._report(state.request_id).tensors["frames"] = FrameSource(result.frame)

    def _keep_hidden(self, sequence: SequenceState, row: PlanRow, hidden: Layers, recalled: Layers) -> None:
        """What the row captured, behind what is recalled of the blocks that were not computed."""
        if sequence.outputs_at is not None and self._scheduler.shares(sequence):
            self._captured.grow(sequence, row, hidden)
        if not hidden and not recalled:
            return
        spans = [*chain.from_iterable(block.wanted for block in row.recalled), *row.captures]
        whole = joined([part for part in (recalled, hidden) if part])
        report = self._report(row.key.request_id)
        report.positions = [*chain.from_iterable(spans)]
        report.tensors.update({f"hidden_{layer}": TorchSource(rows) for layer, rows in whole.items()})

    def _outputs(self) -> Iterator[StageOutput]:
        reports, self._reports = self._reports, {}
        for request_id, report in reports.items():
            state = self._requests.get(request_id)
            ended = state if state is not None and state.is_done else None
            if ended is not None:
                del self._requests[request_id]
            output = report.output(request_id, ended)
            if output is not None:
                yield output

    def _leave(self, key: SequenceKey) -> None:
        self._scheduler.remove(key)
        self._runner.forget(key)
        self._captured.forget(key)

    def _fail(self, state: RequestState, error: Exception) -> None:
        report = self._report(state.request_id)
        consumed = report.consumed
        self.cancel(state.request_id)
        self._reports[state.request_id] = StepReport(consumed, error=self._error(error))

    def _report(self, request_id: str) -> StepReport:
        found = self._reports.get(request_id)
        if found is None:
            found = self._reports[request_id] = StepReport()
        return found

    def _error(self, error: Exception) -> ErrorInfo:
        return ErrorInfo.of(error, stage=self._config.model_stage)
