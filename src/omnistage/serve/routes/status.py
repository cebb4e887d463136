"""GET /health, /metrics, /version: how the server is. Never waits for a stage."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from omnistage import __version__
from omnistage.obs.metrics import GaugeFigures
from omnistage.runtime.base import RuntimeStatus
from omnistage.serve.serving import Serving

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def router(serving: Serving) -> APIRouter:
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> JSONResponse:
        status = serving.engine.status()
        if status.state == "ready":
            return JSONResponse(health_object(status))
        return JSONResponse(health_object(status), 503, {"Retry-After": "1"})

    @routes.get("/metrics")
    async def metrics() -> Response:
        return Response(serving.metrics.text(gauges_of(serving.engine.status())), media_type=_METRICS_TYPE)

    @routes.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    return routes


def health_object(status: RuntimeStatus) -> dict[str, Any]:
    """The state of everything; what is wrong with the whole, and of replicas that are not ready why, and how far they are."""
    troubled = [
        {
            "process": replica.process,
            "replica": replica.replica,
            "state": replica.state,
            "progress": round(replica.progress, 2),
            "note": replica.note,
        }
        for replica in status.replicas
        if replica.state != "ready"
    ]
    answer: dict[str, Any] = {"status": status.state, "stages": dict(status.stages)}
    if status.reason:
        answer["reason"] = status.reason
    return {**answer, "replicas": troubled} if troubled else answer


def gauges_of(status: RuntimeStatus) -> GaugeFigures:
    return GaugeFigures(
        open_requests=status.open_requests,
        restarts=sum(replica.restarts for replica in status.replicas),
        stages_ready={name: state == "ready" for name, state in status.stages.items()},
        stage_gauges=status.replica_gauges,
    )
