"""The engine of diffusion stages whose model draws whole pictures in one call (modeling.diffusion.WholeModel).

    input -> plan -> [slot] -> a call for pictures whose plans are alike, step by step -> pictures

A call stands still after each of its steps (stages.diffusion.calls): a step of this engine is one of the call's, and between two of
them mail is read. There is one call at a time; who comes while it goes on waits for its end. The next one is for the oldest
picture of those of the best priority, and takes along whichever can be drawn with it, within the budget. The pictures of a request
that is cancelled are drawn to the end with the others of their call, and thrown away; a call that nobody waits for any more ends
where it stands. Pictures of a call that fails are drawn again one by one, once; only those that fail alone fail.

What leaves: pictures; for requests that are streamed to the caller also how far each picture is (stages.diffusion.captures).
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from omnistage.config.stage import DiffusionStageConfig
from omnistage.core.errors import StageFailedError
from omnistage.core.params import MAX_SEED
from omnistage.modeling.diffusion import AfterStep, PicturePlan, Wanted, WholeModel
from omnistage.modeling.protocols import Bridge, GenerationProcessor
from omnistage.stages.base import StageOutput
from omnistage.stages.diffusion import captures
from omnistage.stages.diffusion.admission import Admission
from omnistage.stages.diffusion.calls import Returned, StandingCall, StepTaken
from omnistage.stages.diffusion.pictures import PictureEngine
from omnistage.stages.diffusion.requests import RequestState
from omnistage.stages.seats import Seats

log = logging.getLogger(__name__)

Picture = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Picture `index` of a request; the request may have left meanwhile, and another one of its name may have come."""

    state: RequestState
    index: int

    @property
    def request_id(self) -> str:
        return self.state.request.request_id

    @property
    def plan(self) -> PicturePlan:
        assert self.state.plan is not None, "only what is planned is drawn"
        return self.state.plan

    @property
    def seed(self) -> int:
        return ((self.state.params.seed or 0) + self.index) & MAX_SEED


class CallEngine(PictureEngine):
    """A StageEngine (stages.base). `bridge` is None in an entry stage, `processor` in all others."""

    def __init__(
        self,
        config: DiffusionStageConfig,
        model: WholeModel,
        bridge: Bridge | None = None,
        processor: GenerationProcessor | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        admission = Admission(config, model.plan, bridge, processor, clock)
        super().__init__(config, admission, Seats(config.max_num_seqs), clock)
        self._model = model
        self._call: StandingCall[list[Picture]] | None = None
        self._drawn: list[Drawn] = []  # what the call draws, in order
        self._begun: dict[str, int] = {}  # how many of a request's pictures calls have begun
        self._alone: deque[Drawn] = deque()  # pictures of calls that failed
        self._rerun_total = 0

    # ---- StageEngine -----------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        has_own = self._outputs or self._touched or self._alone
        return bool(has_own) or self._call is not None or self._seats.can_run()

    def step(self) -> list[StageOutput]:
        self._take_inputs()
        self._parked_total += len(self._seats.seat().parked)
        if self._call is None:
            self._begin()
        if self._call is not None:
            self._advance(self._call)
        outputs, self._outputs = self._outputs, []
        return outputs

    def gauges(self) -> dict[str, float]:
        return {**super().gauges(), "rerun_total": self._rerun_total}

    # ---- calls -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        while self._alone and not self._is_wanted(self._alone[0]):
            self._alone.popleft()
        self._drawn = [self._alone.popleft()] if self._alone else self._chosen()
        if not self._drawn:
            return
        began_s = self._clock()
        for one in self._drawn:
            one.state.queued_until_s = began_s if one.state.queued_until_s is None else one.state.queued_until_s
        draw = partial(_draw, self._model, [Wanted(one.plan, one.seed) for one in self._drawn])
        self._call = StandingCall(draw, f"draw-{self._stage}")

    def _chosen(self) -> list[Drawn]:
        """Pictures for the next call, which are begun with this. A request that has no others gives its slot back."""
        chosen: list[Drawn] = []
        room = 0
        for request_id in self._seats.candidates():
            first = Drawn(self._requests[request_id], self._begun.get(request_id, 0))
            if not chosen:
                room = max(1, self._config.max_num_batched_tokens // max(1, first.plan.tokens))
            elif not _are_alike(chosen[0].plan, first.plan):
                continue
            end = min(first.state.params.n, first.index + room - len(chosen))
            chosen.extend(Drawn(first.state, index) for index in range(first.index, end))
            self._begun[request_id] = end
            if end == first.state.params.n:
                self._seats.remove(request_id)
        return chosen

    def _advance(self, call: StandingCall[list[Picture]]) -> None:
        wanted = [one for one in self._drawn if self._is_wanted(one)]
        began_s = self._clock()
        news: StepTaken | Returned[list[Picture]] | Exception
        try:
            news = call.advance()
        except Exception as error:  # noqa: BLE001 - who is at fault shows when each is drawn alone
            news = error
        self._note_call(dict.fromkeys(one.request_id for one in wanted), began_s)
        match news:
            case Exception():
                self._take_apart(self._end_call(), news)
            case StepTaken(step=step, steps=steps):
                self._tell(wanted, step, steps)
            case Returned(value=made):
                for one, picture in zip(self._end_call(), made, strict=True):
                    if self._is_wanted(one):
                        self._hand_over(one.state, captures.picture(picture, one.index, one.seed))

    def _end_call(self) -> list[Drawn]:
        """What the call drew, or should have."""
        drawn, self._drawn, self._call = self._drawn, [], None
        return drawn

    def _take_apart(self, drawn: list[Drawn], error: Exception) -> None:
        if len(drawn) == 1:
            self._fail(drawn[0].request_id, error)
            return
        told = {"stage": self._stage}
        log.warning("drawing %d pictures failed; they are drawn one by one: %s", len(drawn), error, extra=told)
        self._rerun_total += 1
        self._alone.extend(one for one in drawn if self._is_wanted(one))

    def _tell(self, wanted: list[Drawn], step: int, steps: int) -> None:
        self._picture_steps_total += len(wanted)
        for one in wanted:
            if one.state.hears_steps:
                self._outputs.append(StageOutput(one.request_id, captures.progress(one.index, step, steps)))

    def _is_wanted(self, one: Drawn) -> bool:
        return self._requests.get(one.request_id) is one.state

    def _forget(self, request_id: str) -> None:
        """Frees everything a request holds, but not what it still has to say."""
        super()._forget(request_id)
        self._begun.pop(request_id, None)
        if self._call is not None and not any(self._is_wanted(one) for one in self._drawn):
            self._call.abandon()
            self._end_call()


def _draw(model: WholeModel, wanted: Sequence[Wanted], after_step: AfterStep) -> list[Picture]:
    made = model.draw(wanted, after_step)
    if len(made) != len(wanted):
        raise StageFailedError(f"the model made {len(made)} pictures in place of {len(wanted)}")
    return [captures.checked(picture) for picture in made]


def _are_alike(one: PicturePlan, other: PicturePlan) -> bool:
    """Whether one call can draw both: all is equal but what their conditions say."""
    is_equal = dataclasses.replace(one, conditions=other.conditions) == other
    return is_equal and len(one.conditions) == len(other.conditions)
