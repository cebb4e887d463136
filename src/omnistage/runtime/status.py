"""What every replica is doing, on one board: written by the runtime's thread, read by any.

Knows no processes and no machine. Each entry is a frozen value that is replaced whole, and keys are never added or removed, so
a reader sees a replica as it was at one moment.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from omnistage.runtime.base import ReplicaStatus, RuntimeStatus
from omnistage.runtime.plan import ProcessPlan

Key = tuple[str, int]
"""(process, replica)"""

_BEST_FIRST = ("ready", "draining", "silent", "starting", "restarting", "down")


class StatusBoardState:
    """`phase` of the whole runtime: new | open | draining | ending | stopped. Gauges are by stage name, added up over replicas."""

    def __init__(self, processes: Sequence[ProcessPlan]) -> None:
        self._changed = threading.Condition()
        self._stages = {stage.model_stage: process.name for process in processes for stage in process.stages}
        self._replicas = {
            (process.name, index): ReplicaStatus(process.name, index, "starting")
            for process in processes
            for index in range(process.num_replicas)
        }
        self.phase = "new"
        self.reason = ""
        """Why the whole is not well, in one line, where it is not for a replica's sake."""
        self._gauges: dict[Key, Mapping[str, Mapping[str, float]]] = {key: {} for key in self._replicas}

    def __getitem__(self, key: Key) -> ReplicaStatus:
        return self._replicas[key]

    @property
    def replicas(self) -> tuple[ReplicaStatus, ...]:
        return tuple(self._replicas.values())

    @property
    def stages(self) -> dict[str, str]:
        """State of each stage by name: that of its best replica."""
        return {stage: self._best(process) for stage, process in self._stages.items()}

    @property
    def state(self) -> str:
        """As RuntimeStatus has it."""
        if self.phase in ("draining", "ending"):
            return "draining"
        if self.phase == "stopped":
            return "stopped"
        states = {replica.state for replica in self.replicas}
        if self.reason or not states <= {"starting", "ready"}:
            return "degraded"
        return "ready" if states == {"ready"} else "starting"

    @property
    def gauges(self) -> dict[str, dict[str, float]]:
        """Figures of the last heartbeats."""
        total: dict[str, Counter[str]] = {}
        for by_stage in self._gauges.values():
            for stage, gauges in by_stage.items():
                total.setdefault(stage, Counter()).update(gauges)
        return {stage: dict(counter) for stage, counter in total.items()}

    @property
    def gauges_by_replica(self) -> Mapping[Key, Mapping[str, Mapping[str, float]]]:
        """As they were shown; each entry is replaced whole."""
        return self._gauges

    @property
    def replica_gauges(self) -> dict[tuple[str, int], Mapping[str, float]]:
        """The same, by (stage name, replica)."""
        return {
            (stage, replica): gauges
            for (_, replica), by_stage in self._gauges.items()
            for stage, gauges in by_stage.items()
        }

    @property
    def over(self) -> bool:
        """Nothing is carried out any more."""
        return self.phase in ("ending", "stopped")

    @property
    def settled(self) -> bool:
        """Every stage is ready, one is down for good, or all is over: waiting longer changes nothing."""
        states = self.stages.values()
        return self.phase == "stopped" or "down" in states or all(state == "ready" for state in states)

    def status(self, open_requests: int) -> RuntimeStatus:
        return RuntimeStatus(
            state=self.state,
            stages=self.stages,
            replicas=self.replicas,
            open_requests=open_requests,
            gauges=self.gauges,
            replica_gauges=self.replica_gauges,
            reason=self.reason,
        )

    def set(self, key: Key, **changes: Any) -> None:
        self._replicas[key] = replace(self._replicas[key], **changes)
        self.notify()

    def show_gauges(self, key: Key, by_stage: Mapping[str, Mapping[str, float]]) -> None:
        self._gauges[key] = by_stage

    def enter(self, phase: str) -> None:
        self.phase = phase
        self.notify()

    def end(self) -> None:
        """All is over: no replica runs any more."""
        for key, replica in self._replicas.items():
            self._replicas[key] = replace(replica, state="down", pid=None)
        self.enter("stopped")

    def blame(self, reason: str) -> None:
        """Something is wrong with the whole, or, "", no more."""
        self.reason = reason
        self.notify()

    def notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wait_settled(self, timeout_s: float) -> None:
        self._wait_for(lambda: self.settled, timeout_s)

    def wait_stopped(self, timeout_s: float) -> None:
        self._wait_for(lambda: self.phase == "stopped", timeout_s)

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(condition, timeout_s)

    def _best(self, process: str) -> str:
        states = {replica.state for replica in self.replicas if replica.process == process}
        return next(state for state in _BEST_FIRST if state in states)
