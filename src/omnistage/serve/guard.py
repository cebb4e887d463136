"""What stands before every route: the API key, and the count of responses. Plain ASGI, so that streams pass untouched."""

from __future__ import annotations

import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnistage.obs.metrics import ServerMetrics
from omnistage.serve.errors import InvalidKeyError, error_response

OPEN_PATHS = ("/health",)
"""Reached without a key."""


class Guard:
    """Wraps an app. `api_key` None lets everyone in."""

    def __init__(self, app: ASGIApp, *, api_key: str | None, metrics: ServerMetrics) -> None:
        self._app = app
        self._api_key = api_key
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.responded(_route_of(scope), message["status"])
            await send(message)

        if self._may_pass(scope):
            await self._app(scope, receive, counted)
        else:
            error = InvalidKeyError("the API key is missing or wrong; send it as 'Authorization: Bearer KEY'")
            self._metrics.refused(error.code)
            await error_response(error)(scope, receive, counted)

    def _may_pass(self, scope: Scope) -> bool:
        if self._api_key is None or scope["path"] in OPEN_PATHS:
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return secrets.compare_digest(given, b"Bearer " + self._api_key.encode())


def _route_of(scope: Scope) -> str:
    """The route's template, so that what callers make up does not become series of their own."""
    route = scope.get("route")
    return str(route.path) if route is not None else "unknown"
