"""What stands before every route. What it does with keys, test_routes_status shows."""

from collections.abc import MutableMapping
from typing import Any

from omnistage.obs.metrics import ServerMetrics
from omnistage.serve.guard import Guard


async def test_what_is_no_request_passes_untouched() -> None:
    """Fault: a lifespan or socket event is asked for a key."""
    seen: list[str] = []

    async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def nothing(*_: Any) -> Any:
        return None

    await Guard(app, api_key="secret", metrics=ServerMetrics())({"type": "lifespan"}, nothing, nothing)
    assert seen == ["lifespan"]
