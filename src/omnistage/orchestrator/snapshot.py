"""The machine's tables as plain data (str, int, dict), for /health, debugging and tests. Changes nothing."""

from __future__ import annotations

from typing import Any

from omnistage.orchestrator.pool import WorkerState
from omnistage.orchestrator.requests import RequestState
from omnistage.orchestrator.state import MachineState


def snapshot(state: MachineState) -> dict[str, Any]:
    """`queues` by stage name, `replicas` by "process/index", `requests` by id; the rest are counts."""
    return {
        "phase": state.phase.value,
        "open": len(state.requests),
        "queued": state.queued(),
        "requests": {name: _request(state, request) for name, request in state.requests.items()},
        "queues": {stage.name: len(state.waiting[stage.stage_id]) for stage in state.config.stages},
        "replicas": {f"{worker.process}/{worker.index}": _replica(worker) for worker in state.workers()},
        "refs_held": len(state.refs),
        "slots": sum(len(worker.slots) for worker in state.workers()),
        "control_calls": len(state.calls),
        "timers": len(state.timers),
        "arrivals": state.arrivals,
        "duplicate_arrivals": state.duplicate_arrivals,
        "window_overruns": state.window_overruns,
    }


def _request(state: MachineState, request: RequestState) -> dict[str, Any]:
    attempt = request.attempt
    return {
        "phase": "running" if request.started else "queued",
        "attempt": attempt.number,
        "deaths": request.deaths,
        "order": list(request.order),
        "stages": {state.plan(stage_id).name: status.value for stage_id, status in attempt.runs.items()},
        "client_nbytes": attempt.client.in_flight_nbytes,
        "client_held": len(attempt.client.held),
    }


def _replica(worker: WorkerState) -> dict[str, Any]:
    return {
        "state": worker.status.value,
        "epoch": worker.epoch,
        "slots": len(worker.slots),
        "deaths": len(worker.deaths),
        "reason": worker.reason,
    }
