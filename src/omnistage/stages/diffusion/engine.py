"""The engine of diffusion stages: encode, step, decode, for many pictures at once, each with its own number of steps.

    input -> plan -> [slot] -> encode (kept by content) -> prepare -> [scheduler] -> step, step, ... -> decode -> picture

Encoding and denoising take turns; decoding runs in a thread beside them (stages.diffusion.decoding). A request whose pictures have
taken all their steps gives its slot back. It is finished when all its pictures are out and all its sources have ended. A batch that
fails is run again one by one, once; only those that fail alone fail.

What leaves, one StageOutput each (stages.diffusion.captures): pictures; for requests that are streamed to the caller also how far
each picture is, after every step, and partial pictures.

Works with any model of modeling.diffusion; knows no sockets and no other stage.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from omnistage.config.stage import DiffusionStageConfig
from omnistage.modeling.protocols import Bridge, GenerationProcessor
from omnistage.stages.base import StageOutput
from omnistage.stages.careful import CarefulCalls
from omnistage.stages.diffusion import captures
from omnistage.stages.diffusion.admission import Admission
from omnistage.stages.diffusion.decoding import Decoded, FinishedPicture, PartialPicture, PictureDecoder
from omnistage.stages.diffusion.encoding import ConditionEncoder
from omnistage.stages.diffusion.pictures import PictureEngine
from omnistage.stages.diffusion.plan import PictureKey, StepPlan
from omnistage.stages.diffusion.requests import PictureRun, RequestState, Stepped, preview_steps
from omnistage.stages.diffusion.runner import DiffusionRunner, shape_of
from omnistage.stages.diffusion.scheduler import DiffusionScheduler, PictureWork

DECODE_WAIT_S = 0.02
"""For how long a step waits for a picture when there is nothing else to do: mail is read between two steps."""


class DiffusionEngine(PictureEngine):
    """A StageEngine (stages.base). `bridge` is None in an entry stage, `processor` in all others."""

    def __init__(
        self,
        config: DiffusionStageConfig,
        runner: DiffusionRunner,
        bridge: Bridge | None = None,
        processor: GenerationProcessor | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        stage, budget = config.model_stage, config.max_num_batched_tokens
        self._runner = runner
        self._scheduler = DiffusionScheduler(slots=config.max_num_seqs, budget=budget, one_timestep=runner.one_timestep)
        super().__init__(config, Admission(config, runner.plan, bridge, processor, clock), self._scheduler, clock)
        self._encoder = ConditionEncoder(runner, stage=stage, budget=budget, limit_nbytes=config.condition_cache_bytes)
        self._decoder = PictureDecoder(runner, stage=stage, budget=budget, clock=clock)
        self._calls = CarefulCalls(stage)
        self._has_encoded = False  # in the last step

    # ---- StageEngine -----------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        return self._has_own_work() or self._decoder.pending > 0

    def step(self) -> list[StageOutput]:
        self._deliver()
        self._take_inputs()
        self._seat()
        self._has_encoded = self._is_turn_of_conditions()
        if self._has_encoded:
            self._encode()
        else:
            self._denoise()
        outputs, self._outputs = self._outputs, []
        return outputs

    def gauges(self) -> dict[str, float]:
        return {
            **super().gauges(),
            "decoding": self._decoder.pending,
            "rerun_total": self._calls.num_reruns + self._encoder.num_reruns + self._decoder.num_reruns,
            **{f"apart_by_{reason}_total": count for reason, count in self._scheduler.apart.items()},
            **self._encoder.gauges(),
            **self._runner.gauges(),
        }

    def _has_own_work(self) -> bool:
        """Something that this thread could do now."""
        return bool(self._outputs or self._touched) or len(self._encoder) > 0 or self._scheduler.can_run()

    # ---- slots -----------------------------------------------------------------------------------------------------

    def _seat(self) -> None:
        """Gives slots; who gets the first one asks for its conditions."""
        seating = self._scheduler.seat()
        self._parked_total += len(seating.parked)
        for request_id in seating.seated:
            state = self._requests[request_id]
            if state.asked:
                continue
            state.asked = True
            if self._encoder.ask(state):
                self._begin(state)

    # ---- conditions ------------------------------------------------------------------------------------------------

    def _is_turn_of_conditions(self) -> bool:
        """Steps of both kinds take turns: neither pictures nor those who come wait for more than one of the others."""
        return len(self._encoder) > 0 and not (self._has_encoded and self._scheduler.can_step())

    def _encode(self) -> None:
        began_s = self._clock()
        done = self._encoder.encode(self._requests)
        self._note_call(done.worked_for, began_s)
        for request_id, error in done.failed:
            if request_id in self._requests:
                self._fail(request_id, error)
        for request_id in done.ready:
            state = self._requests.get(request_id)
            if state is not None:
                self._begin(state)

    def _begin(self, state: RequestState) -> None:
        """Its pictures may take their first step."""
        plan, request_id = state.plan, state.request.request_id
        assert plan is not None, "only what is planned gets a slot"
        branches = tuple(state.encoded[condition.key] for condition in plan.conditions)
        try:
            for index in range(state.params.n):
                state.pictures.append(self._runner.prepare(plan, branches, (state.params.seed or 0) + index))
        except Exception as error:  # noqa: BLE001 - a picture that cannot begin fails its request, whatever the model raised
            self._fail(request_id, error)
            return
        works = [
            PictureWork(shape_of(run.denoising), plan.tokens, len(branches), run.denoising.timesteps)
            for run in state.pictures
        ]
        state.encoded.clear()  # the pictures hold them
        self._scheduler.begin(request_id, state.request.order, works)

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _denoise(self) -> None:
        plan = self._scheduler.schedule()
        if not plan.pictures:
            return
        began_s = self._clock()
        names = dict.fromkeys(key.request_id for key in plan.pictures)
        for request_id in names:
            state = self._requests[request_id]
            state.queued_until_s = began_s if state.queued_until_s is None else state.queued_until_s
        made = self._calls.made("a denoising step", lambda keys: self._stepped(plan, keys), plan.pictures)
        self._note_call(names, began_s)
        for key, stepped in zip(plan.pictures, made, strict=True):
            if key.request_id in self._requests:
                self._commit(key, stepped)
        for key in self._scheduler.advance(plan):
            self._decode(key)

    def _stepped(self, plan: StepPlan, keys: Sequence[PictureKey]) -> list[Stepped | Exception]:
        """One step of pictures of the plan: of all, or of one alone."""
        part = plan if len(keys) == len(plan.pictures) else plan.alone(keys[0])
        return self._runner.step(part, {key: self._run_of(key) for key in keys})

    def _commit(self, key: PictureKey, stepped: Stepped | Exception) -> None:
        if isinstance(stepped, Exception):
            self._fail(key.request_id, stepped)
            return
        self._picture_steps_total += 1
        state, run = self._requests[key.request_id], self._run_of(key)
        if not state.hears_steps:
            return
        shown = captures.progress(key.index, run.step, run.num_steps)
        self._outputs.append(StageOutput(key.request_id, shown))
        place = preview_steps(run.num_steps, state.params.partial_images).get(run.step)
        if place is not None:
            before = dataclasses.replace(run.denoising, latents=stepped.latents)
            tokens = self._tokens_of(state)
            self._decoder.submit(PartialPicture(key, before, stepped.prediction, run.step - 1, place, tokens))

    def _decode(self, key: PictureKey) -> None:
        """A picture has taken its last step. A request that has no other one on its way gives its slot back."""
        state, run = self._requests[key.request_id], self._run_of(key)
        tokens = self._tokens_of(state)
        self._decoder.submit(FinishedPicture(key, run.denoising, shape_of(run.denoising), tokens))
        if all(other.step == other.num_steps for other in state.pictures):
            self._scheduler.remove(key.request_id)

    def _run_of(self, key: PictureKey) -> PictureRun:
        return self._requests[key.request_id].pictures[key.index]

    @staticmethod
    def _tokens_of(state: RequestState) -> int:
        assert state.plan is not None, "a picture has been planned"
        return state.plan.tokens

    # ---- outcomes --------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        """Hands out what has been decoded. Waits for it where there is nothing else to do, and without an end for a call that takes
        longer than a step may: then it is this step that is stuck, and whoever watches over steps sees it."""
        wait_s: float | None = 0.0 if self._has_own_work() else DECODE_WAIT_S
        if self._decoder.running_s() > self._config.step_timeout_s:
            wait_s = None
        for decoded in self._decoder.collect(wait_s):
            state = self._requests.get(decoded.job.key.request_id)
            if state is not None:
                self._hand_out(state, decoded)

    def _hand_out(self, state: RequestState, decoded: Decoded) -> None:
        request_id, index = decoded.job.key.request_id, decoded.job.key.index
        state.calls.append(decoded.call)
        if isinstance(decoded.made, Exception):
            self._fail(request_id, decoded.made)
            return
        match decoded.job:
            case PartialPicture(partial=partial):
                self._outputs.append(StageOutput(request_id, captures.partial_picture(decoded.made, index, partial)))
            case FinishedPicture():
                self._hand_over(state, captures.picture(decoded.made, index, state.pictures[index].seed))

    def _forget(self, request_id: str) -> None:
        """Frees everything a request holds, but not what it still has to say."""
        super()._forget(request_id)
        self._encoder.forget(request_id)
        self._decoder.drop(request_id)
