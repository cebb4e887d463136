"""Whose inputs are encoded next: the oldest requests' first, equal ones once, a bounded number in one call.

Knows no tensors, and of what is encoded only its key and its cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Encodable(Protocol):
    """Pictures and sounds of a prompt, conditions of a picture. Equal keys mean equal content."""

    @property
    def key(self) -> str: ...

    @property
    def tokens(self) -> int:
        """What encoding it counts against a step's budget."""


Input = TypeVar("Input", bound=Encodable)


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Input]):
    order: tuple[int, int]
    missing: dict[str, Input]


class EncodingQueue(Generic[Input]):
    """See the module."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._waiting: dict[str, _Waiting[Input]] = {}

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def add(self, request_id: str, order: tuple[int, int], inputs: Iterable[Input]) -> None:
        self._waiting[request_id] = _Waiting(order, {one.key: one for one in inputs})

    def remove(self, request_id: str) -> None:
        """Unknown ids are fine."""
        self._waiting.pop(request_id, None)

    def batch(self) -> list[Input]:
        """What one call encodes: at most `max_tokens`, or one input."""
        found: dict[str, Input] = {}
        left = self._max_tokens
        for waiting in sorted(self._waiting.values(), key=_order):
            for key, one in waiting.missing.items():
                if key in found:
                    continue
                if found and one.tokens > left:
                    return list(found.values())
                found[key] = one
                left -= one.tokens
        return list(found.values())

    def requests_of(self, key: str) -> list[str]:
        """Those that wait for it."""
        return [request_id for request_id, waiting in self._waiting.items() if key in waiting.missing]

    def take(self, request_id: str, key: str) -> bool:
        """It need not wait for this any more; True if it waits for nothing, and it is forgotten."""
        missing = self._waiting[request_id].missing
        del missing[key]
        if not missing:
            del self._waiting[request_id]
        return not missing


def _order(waiting: _Waiting[Input]) -> tuple[int, int]:
    return waiting.order
