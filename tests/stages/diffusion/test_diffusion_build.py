"""From a stage's configuration to its engine."""

from __future__ import annotations

import pytest

from omnistage.core.errors import ConfigError
from omnistage.stages.build import build_engine
from omnistage.stages.diffusion.build import build_diffusion_engine
from omnistage.stages.diffusion.engine import DiffusionEngine
from tests.drawing.painter import painter_config


def test_hooks_are_loaded_and_the_kind_is_found() -> None:
    """Fault: a diffusion stage has no engine."""
    assert isinstance(build_engine(painter_config()), DiffusionEngine)


def test_a_processor_that_runs_in_helpers_is_not_loaded_here() -> None:
    """Fault: the worker holds the tokenizer once more."""
    engine = build_diffusion_engine(painter_config(processor_workers=1))
    assert engine._admission._processor is None


def test_a_stage_with_sources_needs_a_bridge() -> None:
    """Fault: a stage that can be fed nothing starts."""
    with pytest.raises(ConfigError, match="stage painter: bridge"):
        build_diffusion_engine(painter_config(input_sources=(1,), processor=None))
