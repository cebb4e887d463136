"""The repetition penalty: what a sequence has said already becomes less likely (Keskar et al., "CTRL", 2019).

The plain form in torch, which the kernel (modeling/kernels/source/sampling.cpp) is tested against. Sparse: only the entries of
tokens that were seen are touched.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch


class SeenRows(NamedTuple):
    """The penalty of every row, and the distinct tokens it is for: `counts` of them, one row's behind another's."""

    penalties: array[float]
    counts: array[int]
    tokens: array[int]

    @classmethod
    def of(cls, penalties: Sequence[float], seen: Sequence[Sequence[int]]) -> SeenRows:
        """A penalty of 1 changes nothing."""
        made = cls(array("f"), array("q"), array("q"))
        for penalty, tokens in zip(penalties, seen, strict=True):
            counted = tokens if penalty != 1.0 else ()
            made.penalties.append(penalty)
            made.counts.append(len(counted))
            made.tokens.extend(counted)
        return made


def penalise(logits: torch.Tensor, seen: SeenRows) -> None:
    """In place: of `logits` [R, vocab] those of seen tokens are divided by the row's penalty where positive, else multiplied."""
    counts = np.array(seen.counts)
    places = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(logits.device)
    tokens = torch.from_numpy(np.array(seen.tokens)).to(logits.device)
    penalty = torch.from_numpy(np.repeat(np.array(seen.penalties), counts)).to(logits.device)
    values = logits[places, tokens]
    logits[places, tokens] = torch.where(values > 0, values / penalty, values * penalty)
