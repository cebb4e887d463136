"""How a request begins in an AR stage: its parameters are checked, its prompt is read, its choices become sequences.

An entry stage has the whole prompt at once; a stage behind others has an open one, which stages.ar.feeding extends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from omnistage.config.stage import ARStageConfig
from omnistage.core.errors import InvalidRequestError, StageFailedError
from omnistage.core.params import SamplingParams
from omnistage.modeling.protocols import Bridge, FramedModel, ProcessedPrompt, Processor
from omnistage.modeling.tensors import rows_of
from omnistage.stages.ar.choice import ChoiceState
from omnistage.stages.ar.frames import FrameState
from omnistage.stages.ar.plan import SequenceKey
from omnistage.stages.ar.requests import RequestState
from omnistage.stages.ar.runner import ARRunner
from omnistage.stages.ar.scheduler import Scheduler
from omnistage.stages.ar.sequence import SequenceState
from omnistage.stages.base import StageRequest
from omnistage.stages.inbox import InboxState
from omnistage.wire.messages import CLIENT


class Admission:
    """Makes the state of new requests. The processor also brings the tokenizer that turns tokens into text; which tokens end a
    choice is the processor's knowledge, or that of a `framed` model."""

    def __init__(
        self,
        config: ARStageConfig,
        scheduler: Scheduler,
        runner: ARRunner,
        *,
        vocab_size: int,
        processor: Processor | None,
        bridge: Bridge | None,
        captures: bool,
        framed: FramedModel | None,
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._runner = runner
        self._vocab_size = vocab_size
        self._processor = processor
        self._bridge = bridge
        self._captures = captures
        self._framed = framed

    def admit(self, request: StageRequest) -> RequestState:
        """Raises OmniError for what cannot be served. The scheduler does not know its sequences yet."""
        params = self._checked(request.request.stage_params.get(request.stage_id))
        return self._fed(request, params) if self._bridge is not None else self._entered(request, params)

    def open_choices(self, state: RequestState) -> None:
        """The prompt is complete, so it is known how much may follow."""
        processor, leader = self._processor, state.sequences[0]
        knows_ends = processor if processor is not None else self._framed
        state.choices = [
            ChoiceState(
                index,
                state.params,
                eos_token_ids=knows_ends.eos_token_ids if knows_ends is not None else frozenset(),
                max_tokens=leader.max_len - leader.prompt_len,
                decoder=processor.tokenizer if processor is not None else None,
                continues=self._framed is not None,
            )
            for index in range(state.params.n)
        ]

    def _checked(self, params: object) -> SamplingParams:
        if params is None:
            return self._config.default_sampling_params
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError.of(f"stage {self._config.model_stage}", params, "sampling parameters")
        for name, tokens in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
            for token in tokens:
                if token >= self._vocab_size:
                    raise InvalidRequestError.of(name, token, f"token ids in [0, {self._vocab_size - 1}]")
        if params.stop and self._processor is None:
            raise InvalidRequestError.of("stop", list(params.stop), "nothing: this stage makes no text")
        return params

    def _entered(self, request: StageRequest, params: SamplingParams) -> RequestState:
        """An entry stage: the whole prompt is there."""
        if self._processor is None:
            raise StageFailedError("an entry stage has neither a processor nor a bridge")
        prepared = request.prepared_by(self._processor)
        prompt: ProcessedPrompt = prepared.value
        self._check_prompt(prompt)
        max_len = self._scheduler.max_len_of(len(prompt.token_ids), params.max_tokens)
        sequences = self._sequences(request, params, prompt, max_len)
        handoff = prompt.handoff if request.active_targets - {CLIENT} else {}
        state = RequestState(request, params, sequences, prepared=prepared, media=prompt.media, handoff=handoff)
        self.open_choices(state)
        if prompt.embeds is not None:
            hold_embeds(self._runner, state, prompt.embeds)
        if prompt.positions is not None:
            behind = len(prompt.token_ids) if prompt.next_position is None else prompt.next_position
            for sequence in sequences:
                self._runner.hold_positions(sequence.key, prompt.positions, behind)
        return state

    def _check_prompt(self, prompt: ProcessedPrompt) -> None:
        """A processor's mistakes, each of which would show as a wrong answer or in a step of others."""
        length = len(prompt.token_ids)
        if prompt.media and not self._runner.encodes:
            raise StageFailedError(f"stage {self._config.model_stage} was given media, and its model reads none")
        for media in prompt.media:
            places = sum(end - start for start, end in media.spans)
            if places != media.tokens or not all(0 <= start < end <= length for start, end in media.spans):
                raise StageFailedError(f"{media.kind}: {media.tokens} rows cannot go to {media.spans} of {length}")
        if prompt.positions is not None and prompt.positions.shape != (3, length):
            raise StageFailedError(f"positions come as {prompt.positions.shape}, not as (3, {length})")

    def _fed(self, request: StageRequest, params: SamplingParams) -> RequestState:
        """A stage behind others: the prompt comes through the bridge, and is open until they have ended."""
        assert self._bridge is not None
        sequences = self._sequences(request, params, ProcessedPrompt(()), self._scheduler.limits.max_model_len)
        for sequence in sequences:
            sequence.is_open, sequence.content_key = True, None
        inbox = InboxState(
            self._bridge,
            self._config.input_sources,
            stage=self._config.model_stage,
            window=self._config.input_window,
            max_input_nbytes=self._config.max_input_nbytes,
            keeps_used=True,
        )
        return RequestState(request, params, sequences, inbox=inbox)

    def _sequences(
        self, request: StageRequest, params: SamplingParams, prompt: ProcessedPrompt, max_len: int
    ) -> list[SequenceState]:
        # Embeddings without a key of their own tell nothing about what was computed: such blocks are not shared.
        content_key = prompt.content_key if prompt.embeds is None or prompt.content_key else None
        identities = _identities(prompt) if prompt.media else ()
        sequences: list[SequenceState] = []
        for index in range(params.n):
            sequences.append(
                SequenceState(
                    key=SequenceKey(request.request_id, index),
                    order=(*request.order, index),
                    tokens=list(prompt.token_ids),
                    max_len=max_len,
                    content_key=content_key,
                    identities=identities,
                    outputs_at=prompt.outputs_at,
                    capture=self._captures and index == 0 and bool(request.active_targets - {CLIENT}),
                    leader=sequences[0] if index else None,
                    frames=self._frames(),
                )
            )
        return sequences

    def _frames(self) -> FrameState | None:
        """Sides come through the bridge; an entry stage has none."""
        return None if self._framed is None else FrameState(self._framed.pad_side, has_all_sides=self._bridge is None)


def hold_embeds(runner: ARRunner, state: RequestState, embeds: object) -> int:
    """The next rows of the prompt, for all its choices; how many they are."""
    rows = rows_of(embeds)
    state.has_embeds = True
    for sequence in state.sequences:
        runner.hold_embeds(sequence.key, rows)
    return len(rows)


def _identities(prompt: ProcessedPrompt) -> Sequence[int]:
    """What tells prompts apart that have other media behind equal tokens: in the place of each of their tokens a number of 63 bits
    that follows from the medium's key and the row of it."""
    told = np.array(prompt.token_ids, np.int64)
    for media in prompt.media:
        digest = hashlib.blake2b(media.key.encode(), digest_size=8).digest()
        rows = _mixed(
            np.uint64(int.from_bytes(digest, "little")) ^ _mixed(np.arange(1, media.tokens + 1, dtype=np.uint64))
        )
        at = 0
        for start, end in media.spans:
            told[start:end] = (rows[at : at + end - start] >> np.uint64(1)).astype(np.int64)
            at += end - start
    identities: list[int] = told.tolist()
    return identities


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Numbers of 64 bits, each of which depends on every bit of one that was given (Steele et al., "Fast splittable pseudorandom
    number generators", 2014)."""
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
