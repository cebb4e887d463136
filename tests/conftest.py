"""What tests of several packages share: the fetched weights of the built-in model, and the skip where they are absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from omnistage.config.env import cache_dir
from omnistage.core.errors import OmniError
from omnistage.models.demo.weights import DemoWeights, find_demo

# A gate has to say the same of the same commit; whoever works on it draws new examples every time.
settings.register_profile("gate", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("gate")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `weights` is skipped, with the reason, on a machine that has not fetched them."""
    if item.get_closest_marker("weights") is not None:
        _found()


@pytest.fixture(scope="session")
def demo_weights() -> DemoWeights:
    """The two folders of the built-in model."""
    return _found()


@pytest.fixture(scope="session")
def whisper_dir() -> Path:
    """The recogniser that tests listen with; `python -m tests.tools.whisper` brings it."""
    folder = cache_dir() / "test-whisper" / "model"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: run `python -m tests.tools.whisper`")
    return folder


def _found() -> DemoWeights:
    try:
        return find_demo(cache_dir())
    except OmniError as error:
        pytest.skip(error.message)
