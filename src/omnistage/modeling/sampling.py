"""From logits to tokens, for all rows of a step at once.

A row's result depends on its logits and its `SampleRow` alone: one uniform per row comes from a counter (modeling.philox).
Order of operations: penalties, bias and forbidden tokens on the raw logits, then the draw (modeling.drawing): temperature, top-k,
top-p, min-p. Knows nothing of requests or text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from omnistage.core.params import SamplingParams
from omnistage.modeling.drawing import DRAW_SETTINGS, draw_tokens
from omnistage.modeling.philox import uniforms

_FORBIDDEN = float("-inf")

Draw = Callable[[torch.Tensor, npt.NDArray[np.void] | None], list[int]]
"""As `modeling.drawing.draw_tokens`."""


class SampleRow(msgspec.Struct, frozen=True):
    """What one row is sampled with. `position` is the index of the output token, `stream` (choice, sub-step).

    `prompt` and `output` are the tokens so far; they are read only where penalties are on. `forbidden` tokens cannot come.
    """

    params: SamplingParams
    seed: int
    position: int
    stream: tuple[int, int] = (0, 0)
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    forbidden: Sequence[int] = ()


class Sampled(msgspec.Struct, frozen=True):
    """`token` is None where the logits were not finite. `logprob` and `top` [(id, logprob)] only where asked for."""

    token: int | None
    logprob: float | None = None
    top: list[tuple[int, float]] = []


def has_penalties(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def sample(logits: torch.Tensor, rows: Sequence[SampleRow], draw: Draw = draw_tokens) -> list[Sampled]:
    """`logits` [R, vocab] float32, which is changed in place -> one result per row."""
    raw = _raw_logprobs(logits, rows)
    if any(_is_adjusted(row) for row in rows):
        _adjust(logits, rows)
    tokens = draw(logits, _draw_settings(rows))
    return [
        _with_logprobs(token if token >= 0 else None, raw.get(index), row)
        for index, (token, row) in enumerate(zip(tokens, rows, strict=True))
    ]


def _draw_settings(rows: Sequence[SampleRow]) -> npt.NDArray[np.void] | None:
    drawn = [index for index, row in enumerate(rows) if not row.params.greedy]
    if not drawn:
        return None
    settings = np.array([_asked(row.params) for row in rows], DRAW_SETTINGS)
    settings["chance"][drawn] = uniforms(
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
    return bool(row.forbidden or row.params.logit_bias) or has_penalties(row.params)


@torch.inference_mode()  # logits that were made so may only be changed so
def _adjust(logits: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    """In place, and sparse: only the entries of tokens that were seen or named are touched."""
    _repeat(logits, rows)
    _reduce(logits, rows)
    places = [(index, int(token)) for index, row in enumerate(rows) for token in row.forbidden]
    if places:
        at_rows, at_tokens = zip(*places, strict=True)
        logits[list(at_rows), list(at_tokens)] = _FORBIDDEN


def _repeat(logits: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    """Repetition penalty over prompt and output: positive logits are divided by it, negative ones multiplied."""
    places: list[int] = []
    tokens: list[int] = []
    penalties: list[float] = []
    for index, row in enumerate(rows):
        if row.params.repetition_penalty == 1.0:
            continue
        seen = {*row.prompt, *row.output}
        places += [index] * len(seen)
        tokens += seen
        penalties += [row.params.repetition_penalty] * len(seen)
    if not places:
        return
    penalty = torch.tensor(penalties, dtype=logits.dtype, device=logits.device)
    values = logits[places, tokens]
    logits[places, tokens] = torch.where(values > 0, values / penalty, values * penalty)


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
    if params.presence_penalty or params.frequency_penalty:
        for token in set(row.output):
            changes[token] = changes.get(token, 0.0) - params.presence_penalty
        for token in row.output:
            changes[token] -= params.frequency_penalty
    return changes
