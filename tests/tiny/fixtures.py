"""Fixtures over tiny checkpoints and compiled kernels, made once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from omnistage.modeling.kernels.build import build, compiler
from omnistage.modeling.kernels.native import KernelOps
from tests.tiny.checkpoints import write_checkpoint


@pytest.fixture(scope="session")
def kernels() -> KernelOps:
    """Those of this machine."""
    if compiler() is None:
        pytest.skip("this machine has no C++ compiler")
    path = build()
    assert path is not None, "the kernels were not compiled; the log says why"
    return KernelOps(path)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`checkpoint(kind)`: the folder of a tiny random model."""
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = write_checkpoint(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return folder
