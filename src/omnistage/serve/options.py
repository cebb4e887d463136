"""What a server is told at its start. A value; importing it costs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DEFAULT_PORT = 8091


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """`port` 0 takes any free one. `overrides` are configuration keys; `api_key` None lets everyone in."""

    model: str
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    deploy_config: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    api_key: str | None = None
