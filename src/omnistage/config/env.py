"""Everything that is read from the environment, and nothing else is read from it.

Knows the names and their meaning; does not create directories.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from omnistage.core.errors import ConfigError
from omnistage.obs.log import LEVELS


def cache_dir() -> Path:
    """Where fetched and converted weights live: `OMNISTAGE_CACHE`, else below the user's cache directory."""
    named = os.environ.get("OMNISTAGE_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "omnistage"


def child_environment(values: Mapping[str, str], *, level: str | None = None) -> dict[str, str]:
    """The environment of a child process: this one's, with `values` on top. `level` is what it logs where nobody has said."""
    unsaid = {} if level is None else {"OMNISTAGE_LOG_LEVEL": level}
    return {**unsaid, **os.environ, **values}


def log_level() -> str:
    """What is logged where no flag says so: `OMNISTAGE_LOG_LEVEL`, else "info". Raises ConfigError for another word."""
    level = os.environ.get("OMNISTAGE_LOG_LEVEL") or "info"
    if level.lower() not in LEVELS:
        raise ConfigError.of("OMNISTAGE_LOG_LEVEL", level, ", ".join(LEVELS))
    return level.lower()


def wants_named_memory() -> bool:
    """Shared memory is made below /dev/shm although the kernel has memory files (memfd): `OMNISTAGE_NAMED_MEMORY` is 1."""
    return os.environ.get("OMNISTAGE_NAMED_MEMORY") == "1"


def cxx() -> str | None:
    """The C++ compiler that `CXX` names, as for every program that compiles."""
    return os.environ.get("CXX") or None


def wants_kernels() -> bool:
    """Compiled kernels are used where there are any; `OMNISTAGE_KERNELS` 0 has torch compute everything."""
    return os.environ.get("OMNISTAGE_KERNELS") != "0"
