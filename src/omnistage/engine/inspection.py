"""What every process of an engine holds at this moment, in one plain value, for people who look for what was left behind.

    {"server": {process, asyncio_tasks, requests, machine, runtime},
     "driver": {process, machine, runtime} where it is a process of its own, and then the server has no machine; else null,
     "workers": {"process/replica": {process, connectors, delayed_items, stages: {name: ...}}},
     "missing": why a worker has not answered, or null}

Asks the runtime's thread and every worker's IO thread, never a step; the machine is asked before the workers, so that it does not
show the asking. Stages of this process stand under the worker "inline".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from omnistage.core.errors import ErrorInfo
from omnistage.engine.served import ServedModel
from omnistage.obs.process import process_figures
from omnistage.runtime.base import Runtime

INLINE = "inline"

_ANSWER_TIMEOUT_S = 35.0

Answer = tuple[dict[str, Any], ErrorInfo | None]


async def debug_state(model: ServedModel, runtime: Runtime, open_requests: list[str]) -> dict[str, Any]:
    """See the module. Raises TimeoutError if the runtime says nothing at all."""
    own, _ = await _asked(lambda done: runtime.inspect(lambda held: done(held, None)))
    results, error = await _asked(lambda done: runtime.control("debug_state", {}, done))
    server = {
        "process": process_figures(),
        "asyncio_tasks": len(asyncio.all_tasks()),
        "requests": sorted(open_requests),
        **{name: held for name, held in own.items() if name != "driver"},
    }
    workers = _by_worker(model, runtime, results)
    missing = None if error is None else error.message
    return {"server": server, "driver": own.get("driver"), "workers": workers, "missing": missing}


def _by_worker(model: ServedModel, runtime: Runtime, results: dict[str, Any]) -> dict[str, Any]:
    """Answers of the stages, put together by the worker that they came from."""
    names = {str(stage.stage_id): stage.name for stage in model.stages}
    owners = {replica.pid: f"{replica.process}/{replica.replica}" for replica in runtime.status().replicas}
    workers: dict[str, Any] = {}
    for place, result in results.items():
        if result is None:
            continue
        rest = {name: value for name, value in result.items() if name != "stage"}
        owner = owners.get(rest["process"]["pid"], place) if "process" in rest else INLINE
        worker = workers.setdefault(owner, {**rest, "stages": {}})
        worker["stages"][names.get(place.partition("/")[0], place)] = result["stage"]
    return workers


async def _asked(ask: Callable[[Callable[[dict[str, Any], ErrorInfo | None], None]], None]) -> Answer:
    """The answer of a call that answers in another thread."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer] = loop.create_future()

    def settle(results: dict[str, Any], error: ErrorInfo | None) -> None:
        if not answer.done():
            answer.set_result((results, error))

    def done(results: dict[str, Any], error: ErrorInfo | None) -> None:
        loop.call_soon_threadsafe(settle, results, error)

    ask(done)
    async with asyncio.timeout(_ANSWER_TIMEOUT_S):
        return await answer
