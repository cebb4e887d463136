"""From logits to tokens, for all rows of a step at once.

A row's result depends on its logits and its `SampleRow` alone: one uniform per row comes from a counter (modeling.philox).
Order of operations: penalties, bias and forbidden tokens on the raw logits, then the draw (modeling.drawing): temperature, top-k,
top-p, min-p. Knows nothing of requests or text.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from omnistage.core.params import SamplingParams
from omnistage.modeling.drawing import DRAW_SETTINGS, draw_tokens
from omnistage.modeling.philox import uniforms
from omnistage.modeling.repetition import SeenRows, penalise

_FORBIDDEN = float("-inf")

Draw = Callable[[torch.Tensor, npt.NDArray[np.void] | None], list[int]]
"""As `modeling.drawing.draw_tokens`."""

Chances = Callable[[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint32]], npt.NDArray[np.float64]]
"""As `modeling.philox.uniforms`."""

Penalise = Callable[[torch.Tensor, SeenRows], None]
"""As `modeling.repetition.penalise`."""


class SampleRow(msgspec.Struct, frozen=True):
    """What one row is sampled with. `position` is the index of the output token, `stream` (choice, sub-step).

    `seen` are the distinct tokens so far, `output` those that were drawn: read only where the penalties for repetition, and those
    for presence or frequency, are on. `forbidden` tokens cannot come.
    """

    params: SamplingParams
    seed: int
    position: int
    stream: tuple[int, int] = (0, 0)
    seen: Sequence[int] = ()
    output: Sequence[int] = ()
    forbidden: Sequence[int] = ()


class SeenTokens:
    """The distinct tokens of a sequence that grows, from its token `start` on: looked at once each, however long it becomes."""

    def __init__(self, start: int = 0) -> None:
        self._start = start
        self._known: set[int] = set()
        self._tokens = array("q")

    def of(self, tokens: Sequence[int]) -> Sequence[int]:
        """`tokens` begin with those of the last call."""
        for token in tokens[self._start :]:
            if token not in self._known:
                self._known.add(token)
                self._tokens.append(token)
        self._start = max(self._start, len(tokens))
        return self._tokens


class Sampled(msgspec.Struct, frozen=True):
    """`token` is None where the logits were not finite. `logprob` and `top` [(id, logprob)] only where asked for."""

    token: int | None
    logprob: float | None = None
    top: list[tuple[int, float]] = []


def counts_output(params: SamplingParams) -> bool:
    return params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def sample(
    logits: torch.Tensor,
    rows: Sequence[SampleRow],
    draw: Draw = draw_tokens,
    chances: Chances = uniforms,
    repeated: Penalise = penalise,
) -> list[Sampled]:
    """`logits` [R, vocab] float32, which is changed in place -> one result per row. What was made in inference mode may only be
    changed in it."""
    raw = _raw_logprobs(logits, rows)
    if any(_is_adjusted(row) for row in rows):
        _adjust(logits, rows, repeated)
    tokens = draw(logits, _draw_settings(rows, chances))
    return [
        _with_logprobs(token if token >= 0 else None, raw.get(index), row)
        for index, (token, row) in enumerate(zip(tokens, rows, strict=True))
    ]


def _draw_settings(rows: Sequence[SampleRow], chances: Chances) -> npt.NDArray[np.void] | None:
    drawn = [index for index, row in enumerate(rows) if not row.params.greedy]
    if not drawn:
        return None
    settings = np.array([_asked(row.params) for row in rows], DRAW_SETTINGS)
    settings["chance"][drawn] = chances(
        np.array([rows[index].seed for index in drawn], np.uint64),
        np.array([rows[index].position for index in drawn], np.uint64),
        np.array([rows[index].stream for index in drawn], np.uint32),
    )
    return settings


def _asked(params: SamplingParams) -> tuple[float, float, float, float, int]:
    """In the order of DRAW_SETTINGS, without the chance."""
    return (params.temperature, params.top_p, params.min_p, 0.0, params.top_k)


# ---- logprobs ------------------------------------------------------------------------------------------------------


def _raw_logprobs(logits: torch.Tensor, rows: Sequence[SampleRow]) -> dict[int, torch.Tensor]:
    """Log probabilities before anything is changed, of the rows that ask for them."""
    asked = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
    if not asked:
        return {}
    return dict(zip(asked, torch.log_softmax(logits[asked], dim=-1), strict=True))


def _with_logprobs(token: int | None, raw: torch.Tensor | None, row: SampleRow) -> Sampled:
    if token is None or raw is None:
        return Sampled(token)
    count = min(row.params.logprobs or 0, raw.shape[0])
    found = raw.topk(count)
    top = list(zip(found.indices.tolist(), found.values.tolist(), strict=True))
    return Sampled(token, float(raw[token]), top)


# ---- penalties, bias, forbidden tokens -----------------------------------------------------------------------------


def _is_adjusted(row: SampleRow) -> bool:
    repeats = row.params.repetition_penalty != 1.0
    return repeats or bool(row.forbidden or row.params.logit_bias) or counts_output(row.params)


def _adjust(logits: torch.Tensor, rows: Sequence[SampleRow], repeated: Penalise = penalise) -> None:
    """In place, and sparse: only the entries of tokens that were seen or named are touched."""
    penalties = [row.params.repetition_penalty for row in rows]
    if any(penalty != 1.0 for penalty in penalties):
        repeated(logits, SeenRows.of(penalties, [row.seen for row in rows]))
    _reduce(logits, rows)
    places = [(index, int(token)) for index, row in enumerate(rows) for token in row.forbidden]
    if places:
        at_rows, at_tokens = zip(*places, strict=True)
        logits[list(at_rows), list(at_tokens)] = _FORBIDDEN


def _reduce(logits: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    """Presence and frequency penalties over the output, and the bias."""
    places: list[int] = []
    tokens: list[int] = []
    changes: list[float] = []
    for index, row in enumerate(rows):
        for token, change in _changes(row).items():
            places.append(index)
            tokens.append(token)
            changes.append(change)
    if places:
        logits[places, tokens] += torch.tensor(changes, dtype=logits.dtype, device=logits.device)


def _changes(row: SampleRow) -> dict[int, float]:
    params = row.params
    changes = dict(params.logit_bias)
    if counts_output(params):
        for token in set(row.output):
            changes[token] = changes.get(token, 0.0) - params.presence_penalty
        for token in row.output:
            changes[token] -= params.frequency_penalty
    return changes
