"""The inputs of an AR stage behind others: what its bridge makes of their items extends the prompt until every source has ended.

More is taken while less than a step's worth waits: a slow stage slows its sources.
"""

from __future__ import annotations

from omnistage.config.stage import ARStageConfig
from omnistage.core.errors import StageFailedError
from omnistage.modeling.protocols import StageInput
from omnistage.stages.ar.admission import Admission, hold_embeds
from omnistage.stages.ar.requests import RequestState, StepReport
from omnistage.stages.ar.runner import ARRunner
from omnistage.stages.ar.scheduler import Scheduler

_FILLER = 0  # stands in the tokens of a prompt that is made of embeddings


class Feeding:
    """Raises whatever a bridge raises; the caller fails the request."""

    def __init__(
        self, config: ARStageConfig, scheduler: Scheduler, runner: ARRunner, admission: Admission, *, vocab_size: int
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._runner = runner
        self._admission = admission
        self._vocab_size = vocab_size

    def can_take(self, state: RequestState) -> bool:
        """True if `take` would change anything."""
        inbox = state.inbox
        if inbox is None or not state.sequences[0].is_open:
            return False
        return inbox.can_advance or (inbox.unused > 0 and self._has_appetite(state)) or inbox.exhausted

    def take(self, state: RequestState, report: StepReport) -> None:
        """Runs the bridge, appends what it made and closes the prompt where nothing more comes."""
        inbox = state.inbox
        assert inbox is not None
        report.consumed = tuple({**dict(report.consumed), **dict(inbox.advance())}.items())
        while inbox.unused and self._has_appetite(state):
            self._append(state, inbox.take())
        if inbox.exhausted and state.sequences[0].is_open:
            self._close_prompt(state)

    def _has_appetite(self, state: RequestState) -> bool:
        return state.sequences[0].remaining < self._config.max_num_batched_tokens

    def _append(self, state: RequestState, unit: StageInput) -> None:
        tokens = self._tokens_of(state, unit)
        for sequence in state.sequences:
            self._scheduler.append(sequence.key, tokens)
        self._scheduler.max_len_of(len(state.sequences[0].tokens), None)

    def _tokens_of(self, state: RequestState, unit: StageInput) -> list[int]:
        bridge = f"the bridge of stage {self._config.model_stage}"
        match unit.data:
            case {"embeds": embeds} if state.has_embeds or not state.sequences[0].tokens:
                return [_FILLER] * hold_embeds(self._runner, state, embeds)
            case {"token_ids": [*found]} if not state.has_embeds:
                tokens = [int(token) for token in found]
                if not all(0 <= token < self._vocab_size for token in tokens):
                    raise StageFailedError(f"{bridge} made tokens out of [0, {self._vocab_size - 1}]")
                return tokens
            case {"embeds": _} | {"token_ids": _}:
                raise StageFailedError(f"{bridge} mixes tokens and embeddings")
        found_keys = ", ".join(sorted(map(str, unit.data))) or "nothing"
        raise StageFailedError(f"{bridge} made {found_keys}; accepted: token_ids (a list) or embeds")

    def _close_prompt(self, state: RequestState) -> None:
        leader = state.sequences[0]
        if not leader.tokens:
            raise StageFailedError(f"stage {self._config.model_stage} was given no input")
        max_len = self._scheduler.max_len_of(leader.prompt_len, state.params.max_tokens)
        for sequence in state.sequences:
            self._scheduler.close_prompt(sequence.key, max_len)
        self._admission.open_choices(state)
