"""What the engine keeps of one request: its choices, its sequences, its inputs, and what a step has to report of it.

Knows no tensors beyond carrying them, and no scheduling.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from omnistage.core.errors import ErrorInfo
from omnistage.core.params import SamplingParams
from omnistage.core.payload import MultimodalPayload, Tensor, TensorSource
from omnistage.core.request import StageTimes, Usage
from omnistage.modeling.protocols import EncodedMedia, MediaInput
from omnistage.modeling.sampling import SampleRow, SeenTokens, counts_output
from omnistage.stages.ar.choice import ChoiceState
from omnistage.stages.ar.sequence import SequenceState
from omnistage.stages.base import PreparedInput, StageOutput, StageRequest
from omnistage.stages.inbox import InboxState


@dataclass(slots=True, eq=False)
class RequestState:
    """`choices` and `sequences` have one entry per choice. `inbox` is there in stages that are fed, `prepared` in entry stages.
    `media` are encoded before the sequences may run, `encoded` by their keys those that are; `handoff` goes to other stages with
    the first capture. `has_all_inputs`: nothing more is taken from the inbox. Times in seconds."""

    request: StageRequest
    params: SamplingParams
    sequences: list[SequenceState]
    choices: list[ChoiceState] = field(default_factory=list)
    inbox: InboxState | None = None
    prepared: PreparedInput | None = None
    media: Sequence[MediaInput] = ()
    encoded: dict[str, EncodedMedia] = field(default_factory=dict)
    handoff: Mapping[str, Any] = field(default_factory=dict)
    has_embeds: bool = False
    has_all_inputs: bool = False
    ready: bool = True
    added_s: float = field(default_factory=time.perf_counter)
    begun_s: float | None = None
    forward_s: float = 0.0
    seen: list[SeenTokens] = field(default_factory=list)
    seed: int = field(init=False)

    def __post_init__(self) -> None:
        """Admission gives every request a seed; without one it follows from the request's name, so a replay draws the same."""
        named = hashlib.blake2b(self.request_id.encode(), digest_size=8).digest()
        self.seed = int.from_bytes(named, "little") if self.params.seed is None else self.params.seed

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def is_done(self) -> bool:
        return bool(self.choices) and all(choice.finish_reason is not None for choice in self.choices)

    def sample_row(self, index: int) -> SampleRow:
        """How the next token of choice `index` is sampled."""
        sequence, params = self.sequences[index], self.params
        seen: Sequence[int] = ()
        if params.repetition_penalty != 1.0:
            if not self.seen:  # what stands for embeddings has not been read
                self.seen = [SeenTokens(one.prompt_len if self.has_embeds else 0) for one in self.sequences]
            seen = self.seen[index].of(sequence.tokens)
        return SampleRow(
            params=params,
            seed=self.seed,
            position=sequence.output_len,
            stream=(index, 0),
            seen=seen,
            output=sequence.tokens[sequence.prompt_len :] if counts_output(params) else (),
            forbidden=self.choices[index].forbidden,
        )

    def usage(self) -> Usage:
        leader = self.sequences[0]
        return Usage(
            prompt_tokens=leader.prompt_len,
            cached_tokens=leader.cached_tokens or 0,
            completion_tokens=sum(choice.num_tokens for choice in self.choices),
        )

    def times(self) -> StageTimes:
        now = time.perf_counter()
        begun = self.begun_s if self.begun_s is not None else now
        prepared = self.prepared
        return StageTimes(
            queued_s=begun - self.added_s + (0.0 if prepared is None else prepared.elapsed_s),
            prepare_s=None if prepared is None else prepared.prepare_s,
            running_s=now - begun,
            forward_s=self.forward_s,
        )


class StepReport(msgspec.Struct):
    """What one step did for one request."""

    consumed: tuple[tuple[int, int], ...] = ()
    copied: tuple[tuple[int, int], ...] = ()
    choices: list[dict[str, Any]] = []
    tensors: dict[str, TensorSource] = {}
    positions: list[int] = []
    prompt: dict[str, Any] | None = None
    error: ErrorInfo | None = None

    def hand_on(self, handoff: Mapping[str, Any]) -> None:
        """What other stages are told of the prompt: arrays beside the captured tensors, the rest as metadata."""
        self.prompt = {}
        for name, value in handoff.items():
            match value:
                case np.ndarray():
                    self.tensors[name] = Tensor.of(value)
                case TensorSource():
                    self.tensors[name] = value
                case _:
                    self.prompt[name] = value

    def output(self, request_id: str, ended: RequestState | None) -> StageOutput | None:
        """None if there is nothing to say. `ended`: the request, if this step ended it."""
        if self.error is not None:
            return StageOutput(request_id, consumed=self.consumed, error=self.error)
        capture = self._capture()
        if ended is not None:
            reason = ended.choices[0].finish_reason
            return StageOutput(request_id, capture, self.consumed, reason, ended.usage(), ended.times())
        if capture is None and not self.consumed and not self.copied:
            return None
        return StageOutput(request_id, capture, self.consumed, copied=self.copied)

    def _capture(self) -> MultimodalPayload | None:
        if not self.choices and not self.tensors and self.prompt is None:
            return None
        metadata: dict[str, Any] = {"choices": self.choices} if self.choices else {}
        if self.positions:
            metadata["positions"] = self.positions
        if self.prompt is not None:
            metadata["prompt"] = self.prompt
        return MultimodalPayload(self.tensors, metadata)
