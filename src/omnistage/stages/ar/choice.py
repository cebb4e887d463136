"""One choice of a request: from sampled tokens to text, and when it ends. Knows no tensors and no scheduling.

The token that ends a choice (end of text, stop id) is reported in its token ids; its text is left out unless the caller asked
for it. A stop string may end inside a token, which is reported whole. The last report has a "stop_reason", the token id or the stop
string that ended the choice; it has none at the length.
"""

from __future__ import annotations

from typing import Any

import msgspec

from omnistage.core.params import SamplingParams
from omnistage.modeling.detokenizer import Decoder, DetokenizerState
from omnistage.stages.ar.text import StopStringState

STOP = "stop"
LENGTH = "length"


class SampledToken(msgspec.Struct, frozen=True):
    """What came of one row. `top` are the most likely tokens with their log probabilities."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class ChoiceState:
    """See the module. `max_tokens` is what the request's length leaves; without a `decoder` there is no text. Where every token
    `continues` (begins a frame), a token that ends and may not end the choice cannot come."""

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        *,
        eos_token_ids: frozenset[int],
        max_tokens: int,
        decoder: Decoder | None,
        continues: bool = False,
    ) -> None:
        self.index = index
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.num_tokens = 0
        self._params = params
        self._eos = frozenset() if params.ignore_eos else eos_token_ids
        self._never = eos_token_ids if params.ignore_eos and continues else frozenset()
        self._stop_ids = frozenset(params.stop_token_ids)
        self._max_tokens = max_tokens
        self._decoder = decoder
        self._detokenizer = (
            DetokenizerState(decoder, skip_special_tokens=params.skip_special_tokens) if decoder is not None else None
        )
        self._stops = StopStringState(params.stop, include=params.include_stop_str_in_output)

    @property
    def forbidden(self) -> list[int]:
        """Tokens that would end the choice too early, or that nothing could follow."""
        early = self._eos | self._stop_ids if self.num_tokens < self._params.min_tokens else frozenset()
        return sorted(early | self._never) if early or self._never else []

    def end(self) -> None:
        """Nothing is made: there was nothing to answer."""
        self.finish_reason = STOP

    def push(self, sampled: SampledToken) -> dict[str, Any]:
        """Takes a token over; what the choice has to report of it. Sets `finish_reason` where it ends."""
        self.num_tokens += 1
        text = self._take(sampled.token)
        if self.finish_reason is None and self.num_tokens >= self._max_tokens:
            self.finish_reason = LENGTH
            text += self._flush()
        report: dict[str, Any] = {
            "index": self.index,
            "text": text,
            "token_ids": [sampled.token],
            "finish_reason": self.finish_reason,
        }
        if self.stop_reason is not None:
            report["stop_reason"] = self.stop_reason
        if self._params.logprobs is not None:
            top = [[token, logprob, self._spelt(token)] for token, logprob in sampled.top]
            said = {"token_id": sampled.token, "logprob": sampled.logprob, "token": self._spelt(sampled.token)}
            report["logprobs"] = [{**said, "top": top}]
        return report

    def _spelt(self, token: int) -> str | None:
        """The token by itself; a part of a character reads as a replacement character."""
        return None if self._decoder is None else self._decoder.decode([token], skip_special_tokens=False)

    def _take(self, token: int) -> str:
        """The text that became certain; ends the choice where a stop id or a stop string says so."""
        is_end = token in self._eos or token in self._stop_ids
        shown = not is_end or self._params.include_stop_str_in_output
        piece = self._detokenizer.push(token) if self._detokenizer is not None and shown else ""
        text = self._match(piece)
        if is_end and self.finish_reason is None:
            self.finish_reason = STOP
            text += self._flush()
        if is_end:
            self.stop_reason = token
        return text

    def _match(self, piece: str) -> str:
        if self.num_tokens < self._params.min_tokens:
            return piece
        text, found = self._stops.push(piece)
        if found is not None:
            self.finish_reason, self.stop_reason = STOP, found
        return text

    def _flush(self) -> str:
        """What was kept back at an end that no stop string made: a stop string may still come of it."""
        rest = self._detokenizer.flush() if self._detokenizer is not None else ""
        text, found = self._stops.push(rest)
        if found is not None:
            self.finish_reason, self.stop_reason = STOP, found
            return text
        return text + self._stops.flush()
