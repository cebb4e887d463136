"""Encoded conditions by their content: equal ones are encoded once and kept, within bytes, the longest unused first out.

Nobody shares what is kept: whoever asks gets a copy of its own, so that a model which writes to a condition spoils its own request
and no other.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from omnistage.stages.inbox import nbytes_of
from omnistage.stages.recent import RecentValues


class ConditionCache:
    """See the module."""

    def __init__(self, limit_nbytes: int) -> None:
        self._recent: RecentValues[str, Any] = RecentValues(limit_nbytes)
        self.hits = 0
        self.misses = 0

    @property
    def nbytes(self) -> int:
        return self._recent.nbytes

    def get(self, key: str) -> Any | None:
        """A copy of what was encoded under `key`; None where it is not there."""
        found = self._recent.get(key)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        return copied(found)

    def put(self, key: str, encoded: Any) -> None:
        kept = copied(encoded)
        self._recent.put(key, kept, nbytes_of(kept))


def copied(value: Any) -> Any:
    """`value` with tensors and arrays of its own, in whatever plain containers they lie. A row of a larger tensor comes alone."""
    match value:
        case torch.Tensor():
            return value.clone()
        case np.ndarray():
            return value.copy()
        case dict():
            return {key: copied(held) for key, held in value.items()}
        case list():
            return [copied(held) for held in value]
        case tuple():
            held = [copied(one) for one in value]
            return type(value)(*held) if type(value) is not tuple else tuple(held)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [member.name for member in dataclasses.fields(value) if member.init]
        return dataclasses.replace(value, **{name: copied(getattr(value, name)) for name in names})
    return value
