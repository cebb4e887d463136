"""One token for each row of adjusted logits: temperature, top-k, top-p, min-p, and a uniform that was drawn elsewhere.

The plain form in torch and numpy, which the kernel (modeling/kernels/source/sampling.cpp) is tested against. A row depends on its
own logits and settings alone: sums over candidates run in one fixed order in float64, and where values are equal the smaller
token id goes first. Nothing sorts a vocabulary unless a row's nucleus is wider than `NUCLEUS_CANDIDATES`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

NUCLEUS_CANDIDATES = 256

DRAW_SETTINGS = np.dtype(
    [("temperature", "f8"), ("top_p", "f8"), ("min_p", "f8"), ("chance", "f8"), ("top_k", "i8")], align=True
)
"""Of one row. `temperature` 0: the best token. `top_k` <= 0, `top_p` 1, `min_p` 0: no such filter. `chance` in [0, 1)."""

Floats = npt.NDArray[np.float64]
Settings = npt.NDArray[np.void]


def draw_tokens(logits: torch.Tensor, settings: Settings | None) -> list[int]:
    """`logits` [R, vocab] float32, `settings` [R] of DRAW_SETTINGS, or None for the best of each row -> one token a row; -1 where
    a row's best is not finite."""
    best = logits.max(dim=-1)
    is_finite = torch.isfinite(best.values).numpy(force=True)
    tokens: npt.NDArray[np.int64] = np.where(is_finite, best.indices.numpy(force=True), -1)
    if settings is not None:
        drawn = np.flatnonzero(is_finite & (settings["temperature"] > 0))
        tokens[drawn] = _draw(logits[drawn], settings[drawn]) if len(drawn) else []
    found: list[int] = tokens.tolist()
    return found


def _draw(logits: torch.Tensor, settings: Settings) -> list[int]:
    """One token for each of the rows [N, vocab], which are all finite somewhere and not greedy."""
    temperatures = torch.from_numpy(settings["temperature"].astype(np.float32)).to(logits.device)
    # The best logit becomes 0 before the division: a tiny temperature must not overflow.
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperatures[:, None]
    tokens = np.full(len(settings), -1)
    counts = _candidates(settings, logits.shape[1])
    narrow = np.flatnonzero(counts)
    if len(narrow):
        tokens[narrow] = _draw_among_few(scaled[narrow], settings[narrow], counts[narrow])
    for index in np.flatnonzero(tokens < 0):
        tokens[index] = _draw_among_all(scaled[index], settings[index])
    found: list[int] = tokens.tolist()
    return found


def _candidates(settings: Settings, vocab_size: int) -> npt.NDArray[np.int64]:
    """How many of a row's best tokens are looked at first; 0: all of them are."""
    top_k = settings["top_k"]
    has_filter = (settings["top_p"] < 1.0) | (settings["min_p"] > 0.0)
    few = np.where(has_filter & (vocab_size > NUCLEUS_CANDIDATES), NUCLEUS_CANDIDATES, 0)
    return np.where(top_k > 0, np.where(top_k < vocab_size, top_k, 0), few)


def _draw_among_few(scaled: torch.Tensor, settings: Settings, counts: npt.NDArray[np.int64]) -> list[int]:
    """Draws from each row's best tokens; -1 where they do not cover the row's nucleus."""
    best = scaled.topk(int(counts.max()), dim=-1).values
    # The value of the k-th best decides, ties included: which of them a topk lists first depends on the batch.
    threshold = best.gather(1, torch.from_numpy(counts - 1)[:, None].to(best.device))
    at_rows, at_tokens = (scaled >= threshold).nonzero(as_tuple=True)
    values, ids = _padded(at_rows, at_tokens, scaled[at_rows, at_tokens], len(settings))
    order = np.argsort(-values, axis=1, kind="stable")  # ids ascend, so equal values keep the smaller id first
    values, ids = np.take_along_axis(values, order, axis=1), np.take_along_axis(ids, order, axis=1)
    weights = np.exp(values)
    totals = np.cumsum(weights, axis=1)[:, -1]
    is_cut = settings["top_k"] <= 0
    for index in np.flatnonzero(is_cut & (settings["top_p"] < 1.0)):
        totals[index] = _total_weight(scaled[index])
    kept = _filter(weights, totals, settings)
    # Without a top-k more tokens than were looked at may belong to the row.
    looked_at_all = ~is_cut | _covers(weights, np.isfinite(values).sum(axis=1), totals, settings)
    cumulative = np.cumsum(np.where(kept, weights, 0.0), axis=1)
    reach = (settings["chance"] * cumulative[:, -1])[:, None]
    place = np.minimum((cumulative <= reach).sum(axis=1), kept.sum(axis=1) - 1)
    return [int(ids[row, place[row]]) if looked_at_all[row] else -1 for row in range(len(settings))]


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


def _filter(weights: Floats, totals: Floats, settings: Settings) -> npt.NDArray[np.bool_]:
    """Which candidates [N, most], best first, survive top-p and min-p. The best always does."""
    top_p, min_p = settings["top_p"], settings["min_p"]
    cumulative = np.cumsum(weights, axis=1)
    before = np.hstack([np.zeros((len(weights), 1)), cumulative[:, :-1]])
    in_nucleus = (before < (top_p * totals)[:, None]) | (top_p >= 1.0)[:, None]
    kept: npt.NDArray[np.bool_] = (weights > 0) & in_nucleus & (weights >= min_p[:, None] * weights[:, :1])
    kept[:, 0] = True
    return kept


def _covers(
    weights: Floats, lengths: npt.NDArray[np.int64], totals: Floats, settings: Settings
) -> npt.NDArray[np.bool_]:
    """Rows of which no survivor can be outside of their first `lengths` candidates: a filter ends among those."""
    top_p, min_p = settings["top_p"], settings["min_p"]
    last = weights[np.arange(len(weights)), lengths - 1]
    nucleus_ends = (top_p < 1.0) & (np.cumsum(weights, axis=1)[:, -1] >= top_p * totals)
    found: npt.NDArray[np.bool_] = nucleus_ends | (last < min_p * weights[:, 0]) | (last == 0)
    return found


def _total_weight(scaled: torch.Tensor) -> float:
    """The sum over a whole row [vocab], in one fixed order."""
    return float(np.exp(scaled.cpu().numpy().astype(np.float64)).sum())


def _draw_among_all(scaled: torch.Tensor, settings: np.void) -> int:
    """One row [vocab] with every token a candidate, in the order of their ids."""
    weights = np.exp(scaled.cpu().numpy().astype(np.float64))
    likely = weights >= settings["min_p"] * weights.max()
    if settings["top_p"] < 1.0:
        likely &= _nucleus(weights, float(settings["top_p"]))
    weights = np.where(likely, weights, 0.0)
    cumulative = np.cumsum(weights)
    place = int(np.searchsorted(cumulative, float(settings["chance"]) * cumulative[-1], side="right"))
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
