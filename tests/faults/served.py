"""`omnistage serve` with the pipeline of faults in the registry, faulty channels, and GET /replicas: who runs where.

Restarts become forks half a second after all is ready. Everything else is the server's own; one thing may be asked for: with
OMNISTAGE_FAULTS_MORTAL=1 a stage may die as often as it likes and comes back within a second, however often it has died. Waves of
violent faults kill a stage more often in a minute than a server bears (the scene `strikes` is about that), and there is nothing to
see while all wait for a stage that is down. Started as `python -m tests.faults.served serve faults --port N ...`.
"""

from __future__ import annotations

import functools
import json
import os
from dataclasses import replace
from typing import Any

from omnistage.cli.main import main
from omnistage.engine import compose
from omnistage.engine.async_omni_engine import AsyncOmniEngine
from omnistage.models.registry import REGISTRY
from omnistage.runtime import zygote
from omnistage.runtime.driver import Driver
from omnistage.runtime.remote import RemoteDriver
from omnistage.serve import boot
from omnistage.serve.load import Loaded
from omnistage.serve.load import load as load_as_it_is
from omnistage.serve.options import ServeOptions


def load(options: ServeOptions) -> Loaded:
    loaded = load_as_it_is(options)
    return Loaded(Looking(loaded.app, loaded.engine), loaded.engine, loaded.drain_timeout_s)


WORKER = "tests.faults.worker"


class Looking:
    """The app, and before it /replicas: state and pid by process."""

    def __init__(self, app: Any, engine: AsyncOmniEngine) -> None:
        self._app = app
        self._engine = engine

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/replicas":
            await self._app(scope, receive, send)
            return
        replicas = self._engine.status().replicas
        body = json.dumps({replica.process: [replica.state, replica.pid] for replica in replicas}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    zygote.QUIET_S = 0.5
    REGISTRY["faults"] = "tests.faults.family:PIPELINE"
    if os.environ.get("OMNISTAGE_FAULTS_MORTAL") == "1":
        deployed = compose.limits_of
        compose.limits_of = lambda deploy: replace(deployed(deploy), strikes=10_000, restart_most_s=0.5)
    compose.Driver = functools.partial(Driver, worker_module=WORKER)  # type: ignore[attr-defined,assignment]
    compose.RemoteDriver = functools.partial(RemoteDriver, worker_module=WORKER)  # type: ignore[attr-defined,assignment]
    boot._LOADER = "tests.faults.served"
    main()
