"""The one place where errors become HTTP: status, OpenAI's error object, Retry-After.

    {"error": {"message": ..., "type": ..., "param": the field or null, "code": ...}}

Knows every error of `core.errors` and no route.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from omnistage.core.errors import (
    ClientTooSlowError,
    ConnectorError,
    EngineClosedError,
    InvalidRequestError,
    ModelNotFoundError,
    OmniError,
    PayloadTooLargeError,
    QueueFullError,
    RequestAbortedError,
    RequestTimeoutError,
    StageFailedError,
    StageUnavailableError,
    UnsupportedByModelError,
    shortened,
)
from omnistage.obs.metrics import ServerMetrics

STATUS_OF: dict[type[OmniError], int] = {
    InvalidRequestError: 400,
    ModelNotFoundError: 404,
    ClientTooSlowError: 408,
    PayloadTooLargeError: 413,
    QueueFullError: 429,
    RequestAbortedError: 499,
    StageFailedError: 500,
    ConnectorError: 500,
    UnsupportedByModelError: 501,
    StageUnavailableError: 503,
    EngineClosedError: 503,
    RequestTimeoutError: 504,
}
_RETRY_AFTER_S = 1.0
_LONGEST_MESSAGE = 2000  # whatever is repeated in one

log = logging.getLogger("omnistage.serve")


class InvalidKeyError(OmniError):
    """The API key is missing or wrong."""

    code = "invalid_api_key"


def status_of(error: OmniError) -> int:
    """The HTTP status; 500 for what no request can be blamed for."""
    return 401 if isinstance(error, InvalidKeyError) else STATUS_OF.get(type(error), 500)


def error_object(error: OmniError) -> dict[str, Any]:
    """OpenAI's error object. The message names the stage where one failed; a refusal reads as it does in Python."""
    status = status_of(error)
    untold = error.stage is not None and status >= 500 and error.stage not in error.message
    message = f"{error.message} (stage {error.stage})" if untold else error.message
    return _object(message, _type_of(status), error.field, error.code)


def headers_of(error: OmniError) -> dict[str, str]:
    """Retry-After, in whole seconds, where trying again makes sense."""
    if status_of(error) in (429, 503):
        return {"Retry-After": str(max(1, math.ceil(error.retry_after_s or _RETRY_AFTER_S)))}
    return {"WWW-Authenticate": "Bearer"} if isinstance(error, InvalidKeyError) else {}


def error_response(error: OmniError) -> JSONResponse:
    return JSONResponse(error_object(error), status_of(error), headers_of(error))


def install_handlers(app: FastAPI, metrics: ServerMetrics) -> None:
    """Every error of every route goes out as an error object, also unknown routes and our own mistakes, and is counted."""

    async def ours(request: Request, error: Exception) -> JSONResponse:
        known = error if isinstance(error, OmniError) else OmniError(str(error))
        metrics.refused(known.code)
        return error_response(known)

    async def framework(request: Request, error: Exception) -> JSONResponse:
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = error.headers if isinstance(error, HTTPException) else None
        metrics.refused(_code_of(status))
        said = _routing_message(request, status, error)
        return JSONResponse(_object(said, _type_of(status), None, _code_of(status)), status, headers)

    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed: %s: %s", request.method, shortened(request.url.path), type(error).__name__, error)
        metrics.refused(OmniError.code)
        return JSONResponse(_object("internal error", "server_error", None, "internal"), 500)

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=STATUS_OF[RequestAbortedError])

    app.add_exception_handler(OmniError, ours)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(Exception, unforeseen)


def _object(message: str, kind: str, param: str | None, code: str) -> dict[str, Any]:
    field = None if param is None else shortened(param)
    return {"error": {"message": shortened(message, _LONGEST_MESSAGE), "type": kind, "param": field, "code": code}}


def _type_of(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _code_of(status: int) -> str:
    return {404: "unknown_url", 405: "method_not_allowed"}.get(status, "http_error")


def _routing_message(request: Request, status: int, error: Exception) -> str:
    method, path = shortened(request.method), shortened(request.url.path)
    match status:
        case 404:
            return f"unknown URL: {method} {path}; /openapi.json lists those that are served"
        case 405:
            allowed = (getattr(error, "headers", None) or {}).get("Allow", "")
            return f"{method} is not allowed for {path}; accepted: {allowed}"
        case _:
            return str(getattr(error, "detail", error))
