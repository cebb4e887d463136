"""From a configuration to an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omnistage.core.errors import ConfigError
from omnistage.stages.ar.build import build_ar_engine
from tests.tiny.engines import answer, build, greedy, stage_config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"processor": None}, "processor: None.*the stage is an entry"),
        ({"input_sources": (1,)}, "bridge: None.*the stage has sources"),
        ({"processor": "omnistage.models.causal_lm.processor:nothing"}, "nothing"),
        ({"kv_cache_bytes": 2**17}, "kv_cache_bytes: 131072.*at least 278528 bytes for max_model_len 256"),
        ({"extras": {"capture_layers": [5]}}, r"capture_layers: \[5\].*integers in \[0, 4\]"),
        ({"extras": {"capture_layers": "all"}}, "capture_layers: 'all'"),
    ],
)
def test_a_configuration_that_cannot_work_is_named(llama: Path, changes: dict[str, Any], message: str) -> None:
    """Fault: a stage that starts and fails with its first request."""
    with pytest.raises(ConfigError, match=message):
        build_ar_engine(stage_config(llama, **changes))


def test_the_model_bounds_the_length(llama: Path) -> None:
    """Fault: positions that the model was not made for."""
    engine = build(llama, max_model_len=5000, kv_cache_bytes=32 * 2**20)
    heard = answer(engine, [5] * 1020, greedy(10))
    assert heard.error is not None
    assert "max_model_len 1024" in heard.error.message
