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


def tell_bytes(done_nbytes: int, total_nbytes: int) -> None:
    """That so much of the weights is there."""
    listener = _listener.get()
    if listener is not None and total_nbytes > 0:
        fraction = min(MOST, done_nbytes / total_nbytes)
        listener(fraction, f"{done_nbytes // 10**6} of {total_nbytes // 10**6} MB of weights")
