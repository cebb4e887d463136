"""Tiny checkpoints of the real architecture, and what transformers makes of them, once a session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.models.qwen3_omni.reference import load_reference
from tests.tiny.fixtures import kernels as kernels
from tests.tiny.qwen3_omni import SHAPES, OmniShape, write_qwen3_omni


@pytest.fixture(scope="session")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Callable[[OmniShape], Path]:
    """`omni(shape)`: the folder of a whole tiny model."""

    @cache
    def folder(shape: OmniShape) -> Path:
        return write_qwen3_omni(tmp_path_factory.mktemp("omni"), shape)

    return folder


@pytest.fixture(scope="session")
def reference(omni: Callable[[OmniShape], Path]) -> Callable[[OmniShape], Any]:
    """`reference(shape)`: transformers' model of that folder."""

    @cache
    def model(shape: OmniShape) -> Any:
        return load_reference(omni(shape))

    return model


@pytest.fixture(scope="session")
def tiny(omni: Callable[[OmniShape], Path]) -> Path:
    """The folder of the first shape."""
    return omni(SHAPES[0])


@pytest.fixture(scope="session")
def theirs(reference: Callable[[OmniShape], Any]) -> Any:
    """transformers' model of it."""
    return reference(SHAPES[0])


@pytest.fixture(params=["kernels", "torch"])
def computed_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that are built here compute with compiled kernels, or without; where there is no compiler, without."""
    if request.param == "kernels":
        request.getfixturevalue("kernels")
    monkeypatch.setenv("OMNISTAGE_KERNELS", "1" if request.param == "kernels" else "0")
