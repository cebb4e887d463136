"""A call that stands still between its steps."""

from __future__ import annotations

import threading
import time

import pytest

from omnistage.modeling.diffusion import AfterStep
from omnistage.stages.diffusion import calls
from omnistage.stages.diffusion.calls import Returned, StandingCall, StepTaken


class Counting:
    """A call of three steps, and what it has come to."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.step = 0
        self.is_over = threading.Event()
        self._stubborn = stubborn

    def __call__(self, after_step: AfterStep) -> str:
        try:
            while self.step < 3:
                self.step += 1
                try:
                    after_step(self.step, 3)
                except BaseException:
                    if not self._stubborn or self.step == 3:
                        raise
            return "drawn"
        finally:
            self.is_over.set()


def test_it_takes_a_step_when_it_is_told_to() -> None:
    """Fault: a call runs ahead of whoever could stop it, or its last word is lost."""
    counting = Counting()
    call = StandingCall(counting, "drawing")
    time.sleep(0.02)
    assert counting.step == 0
    for step in (1, 2, 3):
        assert call.advance() == StepTaken(step, 3)
        time.sleep(0.01)
        assert counting.step == step
    assert call.advance() == Returned("drawn")


def test_what_it_raises_comes_out() -> None:
    """Fault: a call that has failed is waited for without an end."""

    def fails(_after_step: AfterStep) -> None:
        raise ArithmeticError("told to fail")

    with pytest.raises(ArithmeticError, match="told to fail"):
        StandingCall(fails, "drawing").advance()


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("stubborn", [False, True])
def test_an_abandoned_call_is_over(steps: int, stubborn: bool) -> None:
    """Fault: a call that nobody waits for goes on, beside the next one; one that catches all errors is taken for ended."""
    counting = Counting(stubborn=stubborn)
    call = StandingCall(counting, "drawing")
    for _ in range(steps):
        call.advance()
    call.abandon()
    assert counting.is_over.is_set() or counting.step == steps == 0
    assert counting.step in ((3,) if stubborn and steps else (steps,))


def test_it_does_not_outlive_the_thread_that_advances_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a stage that ends leaves a thread behind, with the pictures that it holds."""
    monkeypatch.setattr(calls, "_LOOK_UP_S", 0.01)
    counting = Counting()
    stage = threading.Thread(target=lambda: StandingCall(counting, "drawing").advance())
    stage.start()
    stage.join(10.0)
    assert counting.is_over.wait(10.0) and counting.step == 1
