"""From logits to tokens, for all rows of a step at once.

A row's result depends on its logits and its `SampleRow` alone: every sum over candidates runs in one fixed order in
float64, one uniform per row comes from a counter (modeling.philox), and where values are equal the smaller token id goes first.
Order of operations: penalties, bias and forbidden tokens on the raw logits, then temperature, top-k, top-p, min-p.
Nothing sorts a vocabulary unless a row's nucleus is wider than `NUCLEUS_CANDIDATES`. Knows nothing of requests or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from omnistage.core.params import SamplingParams
from omnistage.modeling.philox import uniforms

NUCLEUS_CANDIDATES = 256
_FORBIDDEN = float("-inf")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SampleRow:
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


@dataclass(frozen=True, slots=True)
class Sampled:
    """`token` is None where the logits were not finite. `logprob` and `top` [(id, logprob)] only where asked for."""

    token: int | None
    logprob: float | None = None
    top: list[tuple[int, float]] = field(default_factory=list)


def has_penalties(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sampled]:
    """`logits` [R, vocab] float32, which is changed in place -> one result per row."""
    raw = _raw_logprobs(logits, rows)
    _adjust(logits, rows)
    best = logits.max(dim=-1)
    tokens: list[int | None] = best.indices.tolist()
    is_finite = torch.isfinite(best.values).tolist()
    drawn = [index for index, row in enumerate(rows) if not row.params.greedy and is_finite[index]]
    if drawn:
        picked = _draw(logits[drawn], [rows[index] for index in drawn])
        for index, token in zip(drawn, picked, strict=True):
            tokens[index] = token
    return [
        _with_logprobs(token if finite else None, raw.get(index), row)
        for index, (token, finite, row) in enumerate(zip(tokens, is_finite, rows, strict=True))
    ]


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


# ---- drawing -------------------------------------------------------------------------------------------------------


def _draw(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """One token for each of the rows [N, vocab], which are all finite somewhere and not greedy."""
    temperatures = torch.tensor([row.params.temperature for row in rows], dtype=logits.dtype, device=logits.device)
    # The best logit becomes 0 before the division: a tiny temperature must not overflow.
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperatures[:, None]
    chances = uniforms(
        np.array([row.seed for row in rows], np.uint64),
        np.array([row.position for row in rows], np.uint64),
        np.array([row.stream for row in rows], np.uint32),
    )
    tokens = [-1] * len(rows)
    narrow = [index for index, row in enumerate(rows) if _candidates_of(row.params, logits.shape[1])]
    wide = {*range(len(rows))} - {*narrow}
    if narrow:
        found = _draw_among_few(scaled[narrow], [rows[index].params for index in narrow], chances[narrow])
        for index, token in zip(narrow, found, strict=True):
            tokens[index] = token
        wide |= {index for index in narrow if tokens[index] < 0}
    for index in sorted(wide):
        tokens[index] = _draw_among_all(scaled[index], rows[index].params, float(chances[index]))
    return tokens


def _candidates_of(params: SamplingParams, vocab_size: int) -> int:
    """How many of the best tokens are looked at first; 0: all of them are."""
    if params.top_k > 0:
        return params.top_k if params.top_k < vocab_size else 0
    has_filter = params.top_p < 1.0 or params.min_p > 0.0
    return NUCLEUS_CANDIDATES if has_filter and vocab_size > NUCLEUS_CANDIDATES else 0


def _draw_among_few(scaled: torch.Tensor, params: Sequence[SamplingParams], chances: Floats) -> list[int]:
    """Draws from each row's best tokens; -1 where they do not cover the row's nucleus."""
    counts = np.array([_candidates_of(one, scaled.shape[1]) for one in params])
    best = scaled.topk(int(counts.max()), dim=-1).values
    # The value of the k-th best decides, ties included: which of them a topk lists first depends on the batch.
    threshold = best.gather(1, torch.from_numpy(counts - 1)[:, None].to(best.device))
    at_rows, at_tokens = (scaled >= threshold).nonzero(as_tuple=True)
    values, ids = _padded(at_rows, at_tokens, scaled[at_rows, at_tokens], len(params))
    order = np.argsort(-values, axis=1, kind="stable")  # ids ascend, so equal values keep the smaller id first
    values, ids = np.take_along_axis(values, order, axis=1), np.take_along_axis(ids, order, axis=1)
    weights = np.exp(values)
    totals = np.cumsum(weights, axis=1)[:, -1]
    is_cut = np.array([one.top_k <= 0 for one in params])
    for index in np.flatnonzero(is_cut & (np.array([one.top_p for one in params]) < 1.0)):
        totals[index] = _total_weight(scaled[index])
    kept = _filter(weights, totals, params)
    # Without a top-k more tokens than were looked at may belong to the row.
    looked_at_all = ~is_cut | _covers(weights, np.isfinite(values).sum(axis=1), totals, params)
    cumulative = np.cumsum(np.where(kept, weights, 0.0), axis=1)
    place = np.minimum((cumulative <= (chances * cumulative[:, -1])[:, None]).sum(axis=1), kept.sum(axis=1) - 1)
    return [int(ids[row, place[row]]) if looked_at_all[row] else -1 for row in range(len(params))]


def _padded(
    at_rows: torch.Tensor, at_tokens: torch.Tensor, values: torch.Tensor, num_rows: int
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Ragged candidates (row by row, ids ascending) as rectangles [N, most]; what is missing has value -inf."""
    rows = at_rows.cpu().numpy()
    lengths = np.bincount(rows, minlength=num_rows)
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    rectangle = np.full((num_rows, int(lengths.max())), -np.inf)
    ids = np.zeros(rectangle.shape, np.int64)
    rectangle[rows, columns] = values.cpu().numpy()
    ids[rows, columns] = at_tokens.cpu().numpy()
    return rectangle, ids


def _filter(weights: Floats, totals: Floats, params: Sequence[SamplingParams]) -> npt.NDArray[np.bool_]:
    """Which candidates [N, most], best first, survive top-p and min-p. The best always does."""
    top_p = np.array([one.top_p for one in params])
    min_p = np.array([one.min_p for one in params])
    cumulative = np.cumsum(weights, axis=1)
    before = np.hstack([np.zeros((len(weights), 1)), cumulative[:, :-1]])
    in_nucleus = (before < (top_p * totals)[:, None]) | (top_p >= 1.0)[:, None]
    kept = (weights > 0) & in_nucleus & (weights >= min_p[:, None] * weights[:, :1])
    kept[:, 0] = True
    return kept


def _covers(
    weights: Floats, lengths: npt.NDArray[np.int64], totals: Floats, params: Sequence[SamplingParams]
) -> npt.NDArray[np.bool_]:
    """Rows of which no survivor can be outside of their first `lengths` candidates: a filter ends among those."""
    top_p = np.array([one.top_p for one in params])
    min_p = np.array([one.min_p for one in params])
    last = weights[np.arange(len(weights)), lengths - 1]
    nucleus_ends = (top_p < 1.0) & (np.cumsum(weights, axis=1)[:, -1] >= top_p * totals)
    found: npt.NDArray[np.bool_] = nucleus_ends | (last < min_p * weights[:, 0]) | (last == 0)
    return found


def _total_weight(scaled: torch.Tensor) -> float:
    """The sum over a whole row [vocab], in one fixed order."""
    return float(np.exp(scaled.cpu().numpy().astype(np.float64)).sum())


def _draw_among_all(scaled: torch.Tensor, params: SamplingParams, chance: float) -> int:
    """One row [vocab] with every token a candidate, in the order of their ids."""
    weights = np.exp(scaled.cpu().numpy().astype(np.float64))
    likely = weights >= params.min_p * weights.max()
    if params.top_p < 1.0:
        likely &= _nucleus(weights, params.top_p)
    weights = np.where(likely, weights, 0.0)
    cumulative = np.cumsum(weights)
    place = int(np.searchsorted(cumulative, chance * cumulative[-1], side="right"))
    return min(place, int(np.flatnonzero(weights)[-1]))


def _nucleus(weights: Floats, top_p: float) -> npt.NDArray[np.bool_]:
    """The fewest best tokens of a row [vocab] that have `top_p` of its weight; of equal ones the smaller ids. Values are
    sorted, not tokens: that is many times faster."""
    best_first = np.sort(weights)[::-1]
    cumulative = np.cumsum(best_first)
    count = min(int(np.searchsorted(cumulative, top_p * cumulative[-1])) + 1, len(weights))
    edge = best_first[count - 1]
    inside: npt.NDArray[np.bool_] = weights > edge
    inside[np.flatnonzero(weights == edge)[: count - int(inside.sum())]] = True
    return inside
