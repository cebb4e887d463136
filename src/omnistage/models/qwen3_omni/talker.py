"""The talker: reads the user's turns and the text as it is written, makes frames of codec codes.

Its prompt is the user's turns (rows of text are the thinker's embeddings through `text_projection`, rows of media are hidden
states of the thinker through `hidden_projection`) and nine rows that open the answer: the sum of a text side and a codec side, the
last of them with the first token of the text. A row behind the prompt is the sum of the embeddings of a frame's codes and of one
row of text: the next token, the end, or padding. So a step needs the token of the text that it says.

Logits are those of a frame's first code; ids that no frame begins with are suppressed, but for the end. The other codes come from
the code predictor. The thinker's table of embeddings stays in its file: only rows that are read are touched.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from omnistage.core.errors import InvalidRequestError
from omnistage.modeling.decoder import Decoder
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.linear import Linear
from omnistage.modeling.protocols import Attend
from omnistage.modeling.sampling import SampleRow
from omnistage.modeling.step import ARStep, StepRows
from omnistage.modeling.tensors import rows_of
from omnistage.models.qwen3_omni.bridges import PAD
from omnistage.models.qwen3_omni.code_predictor import CodePredictor


@dataclass(frozen=True, slots=True)
class TalkerIds:
    """Of text: the `opening` of an answer (`<|im_start|>`, assistant, a line break), padding, begin and end of speech. Of the
    codec: control codes (`thinking`: those that say that nothing is thought), and the speakers by name in lower case."""

    opening: tuple[int, int, int]
    pad: int
    begin: int
    end: int
    thinking: tuple[int, int, int]
    codec_pad: int
    codec_begin: int
    codec_end: int
    speakers: Mapping[str, int]

    def speaker(self, voice: str | None) -> int:
        """Case does not matter; without a name it is Ethan, or the first there is. Raises InvalidRequestError."""
        name = ("ethan" if "ethan" in self.speakers else next(iter(self.speakers))) if voice is None else voice.lower()
        if name not in self.speakers:
            raise InvalidRequestError.of("voice", voice, ", ".join(sorted(self.speakers)))
        return self.speakers[name]


@dataclass(frozen=True, slots=True)
class Projection:
    """Two linear layers with a SiLU between: from the thinker's width to the talker's."""

    inward: Linear
    outward: Linear

    def __call__(self, rows: torch.Tensor, ops: TorchOps) -> torch.Tensor:
        """[n, thinker's hidden] -> [n, hidden]."""
        return self.outward(ops, F.silu(self.inward(ops, rows.contiguous())))


@dataclass(frozen=True, slots=True)
class TalkerParts:
    """`codes` [vocab + (groups - 1) * codebook, hidden]: the talker's own embeddings, then those of every further code; `text`
    [thinker's vocab, thinker's hidden] as it is stored."""

    decoder: Decoder
    predictor: CodePredictor
    codes: torch.Tensor
    text: torch.Tensor
    text_projection: Projection
    hidden_projection: Projection


class Talker:
    """An `ARModel`, `PositionedModel` and `FramedModel`."""

    def __init__(self, parts: TalkerParts, ids: TalkerIds) -> None:
        decoder = self._decoder = parts.decoder
        self.num_layers, self.num_kv_heads, self.head_dim = decoder.num_layers, decoder.num_kv_heads, decoder.head_dim
        self.hidden_size, self.vocab_size = decoder.hidden_size, decoder.vocab_size
        self.max_positions, self.dtype, self.device = decoder.max_positions, decoder.dtype, decoder.device
        self.eos_token_ids = frozenset({ids.codec_end})
        self.pad_side = PAD
        self._parts = parts
        self._ids = ids
        self._known_by: TorchOps | None = None
        self._known = torch.empty(0)
        further = range(decoder.vocab_size, len(parts.codes), parts.predictor.codebook_size)
        self._starts = torch.tensor([0, *further])  # of each code's rows in the joined table

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._decoder.embed(token_ids)

    def forward(self, step: StepRows, attend: Attend, capture_layers: Sequence[int] = ()) -> ARStep:
        return self._decoder.forward(step, attend, capture_layers)

    def rotations(self, positions: torch.Tensor) -> torch.Tensor:
        return self._decoder.rotations(positions)

    def embed_prompt(self, data: Mapping[str, Any], ops: TorchOps) -> torch.Tensor:
        """A part of the user's turns: `user_ids` [n] with `media_rows` [m], the places of rows of media among them, and `media` [m,
        thinker's hidden] in parts. Or the opening of the answer: `first`, its first token, and `voice`. Raises InvalidRequestError
        for a voice that there is not."""
        if "first" in data:
            return self._opening_rows(data["first"], data["voice"], ops)
        rows = self._text_rows(torch.from_numpy(np.asarray(data["user_ids"], np.int64)), ops)
        if len(data["media_rows"]):
            media = torch.cat([rows_of(part) for part in data["media"]]).to(self.dtype)
            rows[torch.from_numpy(np.asarray(data["media_rows"], np.int64))] = self._parts.hidden_projection(media, ops)
        return rows

    def embed_frames(self, frames: Sequence[Sequence[int]], sides: Sequence[int], ops: TorchOps) -> torch.Tensor:
        """See `FramedModel`."""
        if not frames:
            return torch.empty(0, self.hidden_size, dtype=self.dtype)
        codes = torch.frombuffer(array("q", chain.from_iterable(frames)), dtype=torch.int64)
        rows = (codes.view(len(frames), -1) + self._starts).view(-1)  # of the joined table
        begins = torch.arange(0, len(rows), len(self._starts))
        said = F.embedding_bag(rows, self._parts.codes, begins, mode="sum")
        return said.add_(self._side_rows(sides, ops))

    def complete(
        self, hidden: torch.Tensor, tokens: Sequence[int], draws: Sequence[SampleRow], ops: TorchOps
    ) -> list[tuple[int, ...] | None]:
        """See `FramedModel`."""
        firsts = self._decoder.embed(torch.tensor(tokens))
        found = self._parts.predictor.predict(hidden, firsts, draws, ops)
        return [frame if min(frame) >= 0 else None for frame in zip(tokens, *found, strict=True)]

    def _text_rows(self, ids: torch.Tensor, ops: TorchOps) -> torch.Tensor:
        """Tokens of the text [n] -> [n, hidden]."""
        return self._parts.text_projection(self._parts.text[ids].to(self.dtype), ops)

    def _side_rows(self, sides: Sequence[int], ops: TorchOps) -> torch.Tensor:
        """[R, hidden], or [hidden] for all. Most rows of speech have no text any more, and what stands for it is computed once."""
        if self._known_by is not ops:
            self._known, self._known_by = self._text_rows(torch.tensor([self._ids.end, self._ids.pad]), ops), ops
        if all(side == PAD for side in sides):
            return self._known[1]
        rows = self._known[torch.tensor([int(side == PAD) for side in sides])]
        at = [place for place, side in enumerate(sides) if side >= 0]
        if at:
            rows[at] = self._text_rows(torch.tensor([sides[place] for place in at]), ops)
        return rows

    def _opening_rows(self, first: int, voice: str | None, ops: TorchOps) -> torch.Tensor:
        """[9, hidden]"""
        ids = self._ids
        text = self._text_rows(torch.tensor([*ids.opening, *[ids.pad] * 4, ids.begin, first]), ops)
        codec = [*ids.thinking, ids.speaker(voice), ids.codec_pad, ids.codec_begin]
        text[len(ids.opening) :] += self._decoder.embed(torch.tensor(codec))
        return text
