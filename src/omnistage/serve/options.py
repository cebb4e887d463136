"""What a server is told at its start. A value; importing it costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_PORT = 8091


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """`port` 0 takes any free one. `overrides` reads the configuration keys among the flags, once the port answers: knowing
    all keys takes longer than answering. `allowed_media_domains` and `allowed_local_media_path`: where media may be read from
    (serve.allowed). `api_key` None lets everyone in. `record_events` is a file for what the machine hears
    and says; `debug` opens /debug/state."""

    model: str
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    deploy_config: str | None = None
    overrides: Callable[[], Mapping[str, Any]] = dict
    api_key: str | None = None
    allowed_media_domains: tuple[str, ...] = ()
    allowed_local_media_path: Path | None = None
    record_events: Path | None = None
    debug: bool = False
