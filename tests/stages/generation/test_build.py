"""From a configuration to a generation engine. Fault pinned: a stage without its bridge starts and never makes anything."""

import pytest

from omnistage.core.errors import ConfigError
from omnistage.stages.generation.build import build_generation_engine
from omnistage.stages.generation.engine import GenerationEngine
from tests.fakes import echo_config, sound_config


def test_hooks_are_loaded() -> None:
    """Fault: a hook that is named is not used."""
    assert isinstance(build_generation_engine(echo_config()), GenerationEngine)
    assert isinstance(build_generation_engine(sound_config()), GenerationEngine)


def test_a_stage_with_sources_needs_a_bridge() -> None:
    """Fault: items arrive that nobody can take over."""
    with pytest.raises(ConfigError, match="stage speaker: bridge: None is not accepted"):
        build_generation_engine(sound_config(bridge=None))
