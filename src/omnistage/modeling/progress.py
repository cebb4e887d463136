"""How far a stage's loading is: the loader tells, whoever drives it listens. Knows neither of them, and costs no torch.

`listening` is heard in its own thread alone, so stages that load side by side do not mix. A loader need not tell anything; one
that tells of every tensor does not flood whoever listens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[float, str], None]
"""`listener(fraction, note)`: a fraction in [0, 1] that does not fall, and one line for people."""

LEAST_STEP = 0.01
LEAST_PAUSE_S = 0.1
MOST = 0.99
"""Until the loader returns it has not loaded."""

_listener: ContextVar[Listener | None] = ContextVar("omnistage_loading", default=None)


class LoadingState:
    """How many of `total_nbytes` of weights have been read."""

    def __init__(self, total_nbytes: int) -> None:
        self._total_nbytes = total_nbytes
        self._read_nbytes = 0

    def took(self, nbytes: int) -> None:
        """So many more have."""
        self._read_nbytes += nbytes
        tell_bytes(self._read_nbytes, self._total_nbytes)


_together: ContextVar[LoadingState | None] = ContextVar("omnistage_loading_together", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """What is told inside comes to `listener`, at most once in `LEAST_PAUSE_S` and only if it is `LEAST_STEP` more."""
    told, next_s = 0.0, 0.0

    def hear(fraction: float, note: str) -> None:
        nonlocal told, next_s
        now_s = time.monotonic()
        if fraction >= told + LEAST_STEP and now_s >= next_s:
            told, next_s = fraction, now_s + LEAST_PAUSE_S
            listener(fraction, note)

    token = _listener.set(hear)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def reading_together(total_nbytes: int) -> Iterator[None]:
    """Readers that are made inside, one for each part of a model, tell of its `total_nbytes` and not each of its own."""
    token = _together.set(LoadingState(total_nbytes))
    try:
        yield
    finally:
        _together.reset(token)


def loading_of(nbytes: int) -> LoadingState:
    """For a reader of `nbytes`: what it tells that it took."""
    return _together.get() or LoadingState(nbytes)


def tell_bytes(done_nbytes: int, total_nbytes: int) -> None:
    """That so much of the weights is there."""
    listener = _listener.get()
    if listener is not None and total_nbytes > 0:
        fraction = min(MOST, done_nbytes / total_nbytes)
        listener(fraction, f"{done_nbytes // 10**6} of {total_nbytes // 10**6} MB of weights")
