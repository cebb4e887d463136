"""Step caches by name: what a stage can ask for, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from omnistage.core.errors import ConfigError
from omnistage.stages.diffusion.caches.table import step_cache
from tests.drawing.painter import FakePainter, painter_config


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"cache_config": {"rel_l1_thresh": 1}}, "cache_config: .* accepted: nothing, as cache_backend is none"),
        ({"cache_backend": "tea_cache", "cache_config": {"rel_l1": 1}}, "did you mean 'rel_l1_thresh'"),
        ({"cache_backend": "first_block", "cache_config": {"residual_diff_threshold": "x"}}, "Expected `float`"),
    ],
)
def test_wrong_settings_are_refused_at_the_start(fields: dict[str, Any], says: str) -> None:
    """Fault: a setting of another cache is accepted and does nothing."""
    with pytest.raises(ConfigError, match=says):
        step_cache(painter_config(**fields), FakePainter())


def test_a_model_without_blocks_is_refused() -> None:
    """Fault: the first request finds out that its model cannot be cached."""
    model: Any = object()
    with pytest.raises(ConfigError, match="accepted: none, as this model does not show its blocks"):
        step_cache(painter_config(cache_backend="first_block"), model)
    assert step_cache(painter_config(), model) is None
