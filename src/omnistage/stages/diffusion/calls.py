"""A call that stands still after each of its steps until it is told to go on, or to end: a whole pipeline, step by step.

The call runs in a thread of its own, and only while whoever advances it waits: of the two threads one stands at any time. Times are
not bounded here: who watches over the steps of the thread that advances it sees a call that hangs.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from omnistage.modeling.diffusion import AfterStep

T = TypeVar("T")

_LOOK_UP_S = 1.0
"""A call that stands looks so often whether the thread that advances it is still there: no call outlives it."""


@dataclass(frozen=True, slots=True)
class StepTaken:
    """The call has taken `step` of its `steps`."""

    step: int
    steps: int


@dataclass(frozen=True, slots=True)
class Returned(Generic[T]):
    """The call has ended."""

    value: T


class _Abandoned(BaseException):
    """Ends a call from within; no library takes it for an error of its own."""


class StandingCall(Generic[T]):
    """See the module. `call` is given what it has to call after each step, and begins with the first `advance`. The thread that
    makes this advances it."""

    def __init__(self, call: Callable[[AfterStep], T], name: str) -> None:
        self._goes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._news: queue.SimpleQueue[StepTaken | Returned[T] | BaseException] = queue.SimpleQueue()
        arguments = (call, self._goes, self._news, threading.current_thread())
        threading.Thread(target=_run, args=arguments, name=name, daemon=True).start()

    def advance(self) -> StepTaken | Returned[T]:
        """Waits for the call's next step, or its end. Raises what it has raised."""
        news = self._told(True)
        if isinstance(news, BaseException):
            raise news
        return news

    def abandon(self) -> None:
        """Ends a call that stands, and waits for its end."""
        while isinstance(self._told(False), StepTaken):
            pass  # it has caught what should end it

    def _told(self, goes_on: bool) -> StepTaken | Returned[T] | BaseException:
        self._goes.put(goes_on)
        return self._news.get()


def _run(
    call: Callable[[AfterStep], T],
    goes: queue.SimpleQueue[bool],
    news: queue.SimpleQueue[StepTaken | Returned[T] | BaseException],
    owner: threading.Thread,
) -> None:
    def after_step(step: int, steps: int) -> None:
        news.put(StepTaken(step, steps))
        _stand(goes, owner)

    try:
        _stand(goes, owner)
        news.put(Returned(call(after_step)))
    except BaseException as error:  # noqa: BLE001 - told to the thread that waits for it
        news.put(error)


def _stand(goes: queue.SimpleQueue[bool], owner: threading.Thread) -> None:
    while True:
        try:
            goes_on = goes.get(timeout=_LOOK_UP_S)
        except queue.Empty:
            if owner.is_alive():
                continue
            raise _Abandoned from None
        if not goes_on:
            raise _Abandoned
        return
