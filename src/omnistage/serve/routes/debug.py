"""GET /debug/state: what every process holds. Only there where the server was started with --debug."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from omnistage.serve.serving import Serving


def router(serving: Serving) -> APIRouter:
    routes = APIRouter()

    @routes.get("/debug/state")
    async def state() -> dict[str, Any]:
        return await serving.engine.debug_state()

    return routes
