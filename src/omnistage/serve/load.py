"""The heavy half of a server's start: configuration, the runtime, the web framework. Runs while the port already answers.

The driver and its workers are started before the web framework is imported, so that they load meanwhile. Imports no torch.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass

from starlette.types import ASGIApp

from omnistage.engine.async_omni_engine import AsyncOmniEngine
from omnistage.engine.compose import require_processes, resolved, runtime_of, served_model
from omnistage.obs.metrics import ServerMetrics
from omnistage.serve.allowed import Allowed
from omnistage.serve.attachments import Attachments
from omnistage.serve.options import ServeOptions
from omnistage.serve.serving import Serving, figures_of

_APP = "omnistage.serve.app"
_FETCHING = "omnistage.serve.fetching"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a server serves. `drain_timeout_s`: how long open requests may take once the server is told to end."""

    app: ASGIApp
    engine: AsyncOmniEngine
    drain_timeout_s: float


def load(options: ServeOptions) -> Loaded:
    """Starts the stages and makes the app; does not wait for them. Raises what configuration raises."""
    resolution = resolved(options.model, deploy_config=options.deploy_config, overrides=options.overrides())
    require_processes(resolution)
    allowed = Allowed.of(options.allowed_media_domains, options.allowed_local_media_path)
    metrics = ServerMetrics()
    engine = AsyncOmniEngine(
        served_model(resolution),
        runtime_of(resolution, record_events=options.record_events, observer=metrics),
        observer=lambda record: metrics.ended(figures_of(record)),
    )
    engine.start()
    # Imported only where something may be fetched, and not when the first one asks for it.
    fetcher = importlib.import_module(_FETCHING).Fetcher(allowed) if allowed.hosts else None
    serving = Serving(
        engine,
        int(time.time()),
        metrics,
        options.api_key,
        debug=options.debug,
        attachments=Attachments(allowed, fetcher),
    )
    return Loaded(importlib.import_module(_APP).create_app(serving), engine, resolution.deploy.drain_timeout_s)
