"""GET /v1/models and /v1/models/{name}: the one model that is served, and what it reads and makes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from omnistage.serve.serving import Serving


def router(serving: Serving) -> APIRouter:
    routes = APIRouter()

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model_object(serving)]}

    @routes.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        serving.require_model(name)
        return model_object(serving)

    return routes


def model_object(serving: Serving) -> dict[str, Any]:
    """OpenAI's model object; below `omnistage` what the model can do."""
    served = serving.engine.model
    return {
        "id": served.name,
        "object": "model",
        "created": serving.created,
        "owned_by": "omnistage",
        "omnistage": {
            "reads": list(served.reads),
            "makes": list(served.modalities),
            "voices": list(served.voices),
            "stages": [stage.name for stage in served.stages],
        },
    }
