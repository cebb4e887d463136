"""Fixtures over tiny checkpoints, made once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny.checkpoints import write_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`checkpoint(kind)`: the folder of a tiny random model."""
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = write_checkpoint(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return folder
