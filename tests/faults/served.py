"""`omnistage serve` with the pipeline of faults in the registry, faulty channels, and GET /state: what its tables hold.

Everything else is the server's own. A stage may die here as often as it likes (OMNISTAGE_FAULTS_STRIKES says otherwise), and
comes back within a second: many deaths in a minute are what a campaign is made of. Started as
`python -m tests.faults.served serve faults --port N ...`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import threading
from dataclasses import replace
from typing import Any

from omnistage.cli.main import main
from omnistage.engine import compose
from omnistage.engine.async_omni_engine import AsyncOmniEngine
from omnistage.models.registry import REGISTRY
from omnistage.runtime.driver import Driver
from omnistage.serve import boot
from omnistage.serve.load import Loaded
from omnistage.serve.load import load as load_as_it_is
from omnistage.serve.options import ServeOptions

ANSWER_S = 5.0


def load(options: ServeOptions) -> Loaded:
    loaded = load_as_it_is(options)
    return Loaded(Looking(loaded.app, loaded.engine), loaded.engine, loaded.drain_timeout_s)


class Looking:
    """The app, and before it /state."""

    def __init__(self, app: Any, engine: AsyncOmniEngine) -> None:
        self._app = app
        self._engine = engine

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/state":
            await self._app(scope, receive, send)
            return
        body = json.dumps(await asyncio.to_thread(self._state)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})

    def _state(self) -> dict[str, Any]:
        """Looked up in the runtime's own thread, so that nothing moves meanwhile."""
        runtime: Any = self._engine._runtime
        seen: dict[str, Any] = {}
        done = threading.Event()

        def look() -> None:
            machine = runtime._machine.snapshot()
            arenas = runtime._supervisor.arenas
            seen.update(
                {name: machine[name] for name in ("open", "queued", "refs_held", "slots", "timers", "control_calls")},
                sinks=len(runtime._sinks),
                mailboxes=len(self._engine._open),
                arena_keys=sum(len(arena.keys) for arena in arenas._arenas.values()),
                arenas=len(arenas),
                segments=arenas.num_segments,
            )
            done.set()

        runtime._inbox.put(look)
        if not done.wait(ANSWER_S):
            return {"error": "the runtime does not answer"}
        return {
            "tables": seen,
            "gauges": {name: dict(figures) for name, figures in runtime.status().gauges.items()},
            "replicas": {replica.process: [replica.state, replica.pid] for replica in runtime.status().replicas},
        }


if __name__ == "__main__":
    REGISTRY["faults"] = "tests.faults.family:PIPELINE"
    strikes = int(os.environ.get("OMNISTAGE_FAULTS_STRIKES", "10000"))
    deployed = compose.limits_of
    compose.limits_of = lambda deploy: replace(
        deployed(deploy), strikes=strikes, restart_first_s=0.2, restart_most_s=0.5
    )
    compose.Driver = functools.partial(Driver, worker_module="tests.faults.worker")  # type: ignore[attr-defined,assignment]
    boot._LOADER = "tests.faults.served"
    main()
