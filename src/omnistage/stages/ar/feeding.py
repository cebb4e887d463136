"""The inputs of an AR stage behind others: what its bridge makes of their items extends the prompt until every source has ended, or
the bridge closes it.

More of a prompt is taken while less than a step's worth waits: a slow stage slows its sources. What comes after it (the sides of a
framed model: numbers) is taken as it comes, so a stage that waits for one never withholds the credit for it.
"""

from __future__ import annotations

from omnistage.config.stage import ARStageConfig
from omnistage.core.errors import InvalidRequestError, StageFailedError
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
        if inbox is None or state.has_all_inputs or state.is_done:
            return False
        return inbox.exhausted or inbox.can_advance or self._wants(state, inbox.peek())

    def take(self, state: RequestState, report: StepReport) -> None:
        """Runs the bridge, uses what it made, and notes where nothing more comes. A prompt of nothing ends the request."""
        inbox = state.inbox
        assert inbox is not None
        report.consumed = tuple({**dict(report.consumed), **dict(inbox.advance())}.items())
        while self._wants(state, inbox.peek()) and not state.is_done:
            self._use(state, inbox.take())
        if inbox.exhausted and not state.is_done:
            self._note_end(state)

    def _wants(self, state: RequestState, unit: StageInput | None) -> bool:
        if unit is None:
            return False
        leader = state.sequences[0]
        extends = leader.is_open and not unit.data.keys() & {"close", "sides"}
        return not extends or leader.remaining < self._config.max_num_batched_tokens

    def _note_end(self, state: RequestState) -> None:
        if state.sequences[0].is_open:
            self._close_prompt(state)
        for sequence in state.sequences:
            self._scheduler.supply(sequence.key, (), all_there=True)
        state.has_all_inputs = True

    def _use(self, state: RequestState, unit: StageInput) -> None:
        match unit.data:
            case {"close": True} if state.sequences[0].is_open:
                self._close_prompt(state)
            case {"sides": [*sides]} if state.sequences[0].frames is not None:
                for sequence in state.sequences:
                    self._scheduler.supply(sequence.key, [int(side) for side in sides], all_there=False)
            case _:
                self._append(state, unit)

    def _append(self, state: RequestState, unit: StageInput) -> None:
        tokens = self._tokens_of(state, unit)
        for sequence in state.sequences:
            self._scheduler.append(sequence.key, tokens)
        self._room_of(len(state.sequences[0].tokens))

    def _tokens_of(self, state: RequestState, unit: StageInput) -> list[int]:
        bridge, leader = f"the bridge of stage {self._config.model_stage}", state.sequences[0]
        if not leader.is_open:
            raise StageFailedError(f"{bridge} goes on with a prompt that it has closed")
        match unit.data:
            case {"prompt": {} as written} if leader.frames is not None:
                count = hold_embeds(self._runner, state, self._runner.prompt_rows(written))
                self._hold_positions(state, unit, count)
                return [_FILLER] * count
            case {"embeds": embeds} if state.has_embeds or not leader.tokens:
                return [_FILLER] * hold_embeds(self._runner, state, embeds)
            case {"token_ids": [*found]} if not state.has_embeds and leader.frames is None:
                tokens = [int(token) for token in found]
                if not all(0 <= token < self._vocab_size for token in tokens):
                    raise StageFailedError(f"{bridge} made tokens out of [0, {self._vocab_size - 1}]")
                return tokens
            case {"embeds": _} | {"token_ids": _} if leader.frames is None:
                raise StageFailedError(f"{bridge} mixes tokens and embeddings")
        found_keys = ", ".join(sorted(map(str, unit.data))) or "nothing"
        accepted = "token_ids (a list) or embeds" if leader.frames is None else "prompt, embeds, sides (a list)"
        raise StageFailedError(f"{bridge} made {found_keys}; accepted: {accepted} or close (True)")

    def _hold_positions(self, state: RequestState, unit: StageInput, count: int) -> None:
        """Rotary positions of a prompt's rows, where they are not their places."""
        positions = unit.data.get("positions")
        if positions is None:
            return
        if positions.shape != (3, count):
            made = f"positions {list(positions.shape)} for {count} rows; accepted: [3, {count}]"
            raise StageFailedError(f"the bridge of stage {self._config.model_stage} made {made}")
        for sequence in state.sequences:
            self._runner.hold_positions(sequence.key, positions, unit.data["next_position"])

    def _close_prompt(self, state: RequestState) -> None:
        """What a caller allows may be more than the prompt leaves room for: nobody knew its length."""
        leader, max_tokens = state.sequences[0], state.params.max_tokens
        if not leader.tokens and leader.frames is None:
            raise StageFailedError(f"stage {self._config.model_stage} was given no input")
        room = self._room_of(leader.prompt_len)
        max_len = room if max_tokens is None else min(room, leader.prompt_len + max_tokens)
        for sequence in state.sequences:
            self._scheduler.close_prompt(sequence.key, max_len)
        self._admission.open_choices(state)
        if not leader.tokens:
            for choice in state.choices:
                choice.end()

    def _room_of(self, prompt_len: int) -> int:
        """Tokens at which a sequence ends. Whoever sent the prompt may not know that this stage has a limit of its own."""
        try:
            return self._scheduler.max_len_of(prompt_len, None)
        except InvalidRequestError as error:
            raise InvalidRequestError(
                f"{error.message} in stage {self._config.model_stage}", field=error.field
            ) from None
