"""From what comes in for a request to the plan of its pictures, within the bounds of the stage; nothing is allocated here.

An entry stage has its input from the processor (or a helper that ran it), another one from its bridge. The first StageInput holds
the family's data; a second one is an error. All errors are the request's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from omnistage.config.stage import DiffusionStageConfig
from omnistage.core.errors import InvalidRequestError, StageFailedError
from omnistage.core.params import DiffusionParams
from omnistage.core.request import OmniRequest
from omnistage.modeling.diffusion import PicturePlan
from omnistage.modeling.protocols import Bridge, GenerationProcessor, StageInput
from omnistage.stages.base import PreparedInput, StageRequest
from omnistage.stages.diffusion.requests import RequestState
from omnistage.stages.inbox import InboxState

Plan = Callable[[OmniRequest, DiffusionParams, Mapping[str, Any]], PicturePlan]
"""What a model makes of a request, its parameters and the data of its input (modeling.diffusion)."""


class Admission:
    """See the module. `bridge` is None in an entry stage, `processor` in all others."""

    def __init__(
        self,
        config: DiffusionStageConfig,
        plan: Plan,
        bridge: Bridge | None,
        processor: GenerationProcessor | None,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._plan_of = plan
        self._bridge = bridge
        self._processor = processor
        self._clock = clock

    def admit(self, request: StageRequest) -> RequestState:
        """Raises whatever a processor makes of it, and PayloadTooLargeError."""
        prepared = request.prepared if self._processor is None else request.prepared_by(self._processor)
        inbox = self._inbox(request, prepared)
        state = RequestState(request, self._params(request), inbox, self._clock())
        if prepared is not None:
            state.added_s, state.prepare_s = state.added_s - prepared.elapsed_s, prepared.prepare_s
        return state

    def advance(self, state: RequestState) -> tuple[tuple[int, int], ...]:
        """Bridges what has come, and plans when the input is there; (source, seq) of what was taken over. Raises whatever a bridge
        or the model makes of it, and InvalidRequestError for what exceeds the stage's bounds."""
        consumed = state.inbox.advance()
        while state.inbox.unused:
            if state.plan is not None:
                raise StageFailedError("a second input came for a request that is drawn already", stage=self._stage)
            unit = state.inbox.take()
            state.plan = self._plan(state, unit)
            state.left = state.params.n
            consumed = tuple({**dict(consumed), **dict(state.inbox.advance())}.items())
        return consumed

    def _plan(self, state: RequestState, unit: StageInput) -> PicturePlan:
        plan = self._plan_of(state.request.request, state.params, unit.data)
        check_bounds(plan, self._config)
        if len(plan.conditions) not in (1, 2):
            raise StageFailedError(f"the model plans {len(plan.conditions)} conditions, not 1 or 2", stage=self._stage)
        return plan

    def _inbox(self, request: StageRequest, prepared: PreparedInput | None) -> InboxState:
        stage, limit = self._config.model_stage, self._config.max_input_nbytes
        if self._bridge is None:
            inputs = [StageInput({"request": request.request})] if prepared is None else prepared.value
            return InboxState.of_entry(inputs, stage=stage, max_input_nbytes=limit, keeps_used=True)
        return InboxState(
            self._bridge,
            self._config.input_sources,
            stage=stage,
            window=self._config.input_window,
            max_input_nbytes=limit,
            keeps_used=True,
        )

    def _params(self, request: StageRequest) -> Any:
        return request.request.stage_params.get(self._config.stage_id, self._config.default_sampling_params)

    @property
    def _stage(self) -> str:
        return self._config.model_stage


def check_bounds(plan: PicturePlan, config: DiffusionStageConfig) -> None:
    """Raises InvalidRequestError for a picture that is larger, or takes more steps, than the stage allows."""
    pixels = plan.height * plan.width
    if pixels > config.max_pixels:
        asked = f"{plan.width}x{plan.height} ({pixels} pixels)"
        raise InvalidRequestError(
            f"width, height: {asked} is not accepted; accepted: at most {config.max_pixels} pixels (max_pixels)",
            field="width",
        )
    if plan.steps > config.max_steps:
        accepted = f"at most {config.max_steps} (max_steps)"
        raise InvalidRequestError.of("num_inference_steps", plan.steps, accepted)
