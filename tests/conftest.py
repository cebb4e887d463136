"""What tests of several packages share: the fetched weights of the built-in model, and the skip where they are absent."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from omnistage.config.env import cache_dir
from omnistage.core.errors import OmniError
from omnistage.models.demo.weights import DemoWeights, find_demo
from omnistage.obs.log import ROOT

if TYPE_CHECKING:
    from tests.tools.whisper import Whisper

# As in every worker, and before torch is imported: threads that wait for each other by spinning make a test of two threads
# fifteen times as long where something else is running.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A gate has to say the same of the same commit; whoever works on it draws new examples every time. No example is judged by
# the clock: none of these tests is about time, and on a machine that others use 200 ms tell nothing of the code.
settings.register_profile("work", deadline=None)
settings.register_profile("gate", deadline=None, derandomize=True)
settings.load_profile("gate" if os.environ.get("CI") else "work")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that runs inside a test decides where the package logs; the next test's `caplog` should still hear it."""
    logger = logging.getLogger(ROOT)
    handlers, level, propagates = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagates
    logger.setLevel(level)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `weights` is skipped, with the reason, on a machine that has not fetched them."""
    if item.get_closest_marker("weights") is not None:
        _found()


@pytest.fixture(scope="session")
def demo_weights() -> DemoWeights:
    """The two folders of the built-in model."""
    return _found()


@pytest.fixture(scope="session")
def recogniser() -> Whisper:
    """What tests listen with, loaded once; `python -m tests.tools.whisper` brings it."""
    from tests.tools.whisper import Whisper, whisper_dir  # torch, which most tests do without

    folder = whisper_dir(cache_dir())
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: run `python -m tests.tools.whisper`")
    return Whisper(folder)


def _found() -> DemoWeights:
    try:
        return find_demo(cache_dir())
    except OmniError as error:
        pytest.skip(error.message)
