"""Fixtures of the tests here: tiny checkpoints."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny.fixtures import checkpoint as checkpoint


@pytest.fixture(scope="session")
def llama(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("llama")
