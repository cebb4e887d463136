"""The machine: `handle(event) -> commands`. Pure: no clock, chance, thread, socket or tensor; time comes in with events.

A request goes queued -> running -> exactly one of finished, failed, aborted, timed_out. The same events give the same
commands. An event that makes no sense (unknown ids, old attempts and epochs, numbers seen before) changes nothing, except that
a ref that came with it is released.
"""

from __future__ import annotations

from typing import Any

from omnistage.orchestrator import admission, control, ending, items, lifecycle, replies
from omnistage.orchestrator.dispatch import dispatch
from omnistage.orchestrator.plan import OrchestratorConfig
from omnistage.orchestrator.snapshot import snapshot
from omnistage.orchestrator.state import MachineState, Phase
from omnistage.orchestrator.timers import (
    CallDeadline,
    CancelDeadline,
    DrainDeadline,
    RequestDeadline,
    RestartTime,
    StallDeadline,
    Timer,
)
from omnistage.wire.messages import (
    AbortRequested,
    Arrived,
    ClientTook,
    Command,
    ControlCalled,
    Event,
    InputAppended,
    ReplicaDown,
    ReplicaState,
    ReplicaUp,
    Reported,
    ShutdownRequested,
    Tick,
)


class Orchestrator:
    """Routes requests through the stages of one pipeline."""

    def __init__(self, config: OrchestratorConfig) -> None:
        self._state = MachineState(config)

    @property
    def config(self) -> OrchestratorConfig:
        """What it was made of."""
        return self._state.config

    def start(self, now: float) -> list[Command]:
        """Every replica is to be started; requests may arrive at once and are served as their stages come up."""
        self._state.now = now
        lifecycle.start_all(self._state)
        return self._state.take_commands()

    def handle(self, event: Event) -> list[Command]:
        """Takes one event in and says what is to be done, in this order."""
        state = self._state
        state.now = event.now
        self._react(event)
        dispatch(state)
        if state.phase is Phase.DRAINING and not state.requests:
            lifecycle.stop_all(state)
        return state.take_commands()

    def snapshot(self) -> dict[str, Any]:
        """The machine's tables as plain data, for health, debugging and tests."""
        return snapshot(self._state)

    def _react(self, event: Event) -> None:
        state = self._state
        match event:
            case Reported():
                items.reported(state, event)
            case ClientTook():
                replies.took(state, event)
            case Tick():
                self._tick(event.now)
            case Arrived() | InputAppended() | AbortRequested() | ShutdownRequested():
                self._ask(event)
            case ReplicaUp():
                lifecycle.up(state, event)
            case ReplicaState():
                lifecycle.changed(state, event)
            case ReplicaDown():
                lifecycle.down(state, event)
            case ControlCalled():
                control.called(state, event)

    def _ask(self, event: Arrived | InputAppended | AbortRequested | ShutdownRequested) -> None:
        match event:
            case Arrived():
                admission.arrived(self._state, event)
            case InputAppended():
                admission.appended(self._state, event)
            case AbortRequested():
                admission.aborted(self._state, event)
            case ShutdownRequested():
                admission.shut_down(self._state, event)

    def _tick(self, now: float) -> None:
        """Everything that is due. An early tick only has the alarm set again."""
        self._state.forget_alarm()
        while (timer := self._state.timers.pop_due(now)) is not None:
            self._expire(timer)

    def _expire(self, timer: Timer) -> None:
        state = self._state
        match timer:
            case RequestDeadline(request_id=request_id):
                ending.time_out(state, request_id)
            case StallDeadline(request_id=request_id):
                ending.end_stalled(state, request_id)
            case CancelDeadline():
                lifecycle.cancel_overdue(state, timer)
            case RestartTime():
                lifecycle.restart(state, timer)
            case CallDeadline(call_id=call_id):
                control.time_out(state, call_id)
            case DrainDeadline():
                admission.abort_all(state)
