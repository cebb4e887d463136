"""The thinker's hooks on the fetched weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omnistage.config.stage import ARStageConfig
from omnistage.core.errors import BrokenCheckpointError
from omnistage.models.demo.thinker import load
from omnistage.models.demo.weights import DemoWeights


def config_of(folder: Path) -> ARStageConfig:
    return ARStageConfig(stage_id=0, model_stage="thinker", model_path=str(folder), loader="x:y", process="thinker")


def test_another_models_folder_is_refused_by_name(tmp_path: Path) -> None:
    """Fault: a folder of another architecture loads as garbage, or ends in a traceback."""
    with pytest.raises(BrokenCheckpointError, match=r"config\.json"):
        load(config_of(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "whisper", "architectures": ["Whisper"]}))
    with pytest.raises(BrokenCheckpointError, match="omnistage fetch demo"):
        load(config_of(tmp_path))


@pytest.mark.weights
def test_the_fetched_model_has_the_shape_it_should(demo_weights: DemoWeights) -> None:
    """Fault: another checkpoint lies in the cache under this name."""
    model = load(config_of(demo_weights.thinker_dir))
    assert (model.num_layers, model.num_kv_heads, model.head_dim, model.vocab_size) == (30, 3, 64, 49152)
