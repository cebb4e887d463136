"""The web application around an engine: routes, errors, what stands before them. Starts and ends nothing."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from omnistage import __version__
from omnistage.serve.errors import install_handlers
from omnistage.serve.guard import Guard
from omnistage.serve.routes import chat, debug, images, models, status
from omnistage.serve.serving import Serving


def create_app(serving: Serving) -> ASGIApp:
    """Everything that is served, behind the API key."""
    # The schema is served; its pages would load scripts from other hosts.
    app = FastAPI(title="omnistage", version=__version__, redirect_slashes=False, docs_url=None, redoc_url=None)
    install_handlers(app, serving.metrics)
    for routes in (chat, images, models, status, *([debug] if serving.debug else [])):
        app.include_router(routes.router(serving))
    return Guard(app, api_key=serving.api_key, metrics=serving.metrics)
