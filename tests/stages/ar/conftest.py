"""Fixtures of the tests here: tiny checkpoints."""

from collections.abc import Callable
from pathlib import Path

import pytest

from omnistage.stages.ar.engine import ARStageEngine
from tests.tiny.engines import build
from tests.tiny.fixtures import checkpoint as checkpoint
from tests.tiny.fixtures import kernels as kernels


@pytest.fixture(scope="session")
def llama(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("llama")


@pytest.fixture(params=["kernels", "torch"])
def computed_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that are built here compute with compiled kernels, or without; where there is no compiler, without."""
    if request.param == "kernels":
        request.getfixturevalue("kernels")
    monkeypatch.setenv("OMNISTAGE_KERNELS", "1" if request.param == "kernels" else "0")


@pytest.fixture(scope="module")
def engine(llama: Path) -> ARStageEngine:
    """Every test leaves it empty."""
    return build(llama)
