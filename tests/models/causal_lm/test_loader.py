"""Which way a folder is loaded, and how one that is no model is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from omnistage.core.errors import BrokenCheckpointError, ConfigError
from omnistage.modeling.decoder import Decoder
from omnistage.models.causal_lm.loader import load
from omnistage.models.causal_lm.processor import load_processor
from tests.tiny.checkpoints import VOCAB_SIZE, write_checkpoint
from tests.tiny.engines import stage_config


def test_common_shapes_are_loaded_without_transformers(tmp_path: Path) -> None:
    """Fault: the quick start is lost to an import, or the dtype to the file's own."""
    model = load(stage_config(write_checkpoint(tmp_path, "llama"), dtype="bfloat16"))
    assert isinstance(model, Decoder)
    assert model.dtype == torch.bfloat16


def test_other_shapes_are_loaded_by_transformers(tmp_path: Path) -> None:
    """Fault: a model with windows runs on a decoder that has none."""
    model = load(stage_config(write_checkpoint(tmp_path, "mistral")))
    assert type(model).__name__ == "TransformersModel"
    assert model.vocab_size == VOCAB_SIZE


def test_either_way_can_be_asked_for(tmp_path: Path) -> None:
    """Fault: a comparison of the two compares one with itself."""
    llama, mistral = write_checkpoint(tmp_path / "l", "llama"), write_checkpoint(tmp_path / "m", "mistral")
    assert isinstance(load(stage_config(llama, model_impl="decoder")), Decoder)
    assert type(load(stage_config(llama, model_impl="transformers"))).__name__ == "TransformersModel"
    with pytest.raises(ConfigError, match="model_impl: 'decoder' is not accepted; accepted: auto or transformers"):
        load(stage_config(mistral, model_impl="decoder"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, r"has no config\.json"),
        ({"model_type": "llama"}, "describes no model: KeyError 'num_attention_heads'"),
        ({"model_type": "llama", "num_attention_heads": "many", "hidden_size": 1}, "describes no model: ValueError"),
        ({"model_type": "llama", "rope_scaling": 3}, "describes no model: AttributeError"),
        ({"model_type": "unheard-of"}, "cannot be loaded as a causal language model"),
    ],
)
def test_a_folder_that_is_no_model_is_one_line(tmp_path: Path, config: dict | None, message: str) -> None:
    """Fault: a traceback where one line would say what is wrong with which folder."""
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BrokenCheckpointError, match=message) as caught:
        load(stage_config(tmp_path))
    assert str(tmp_path) in caught.value.message
    assert "\n" not in caught.value.message
    if config is None:
        with pytest.raises(BrokenCheckpointError, match=message):
            load_processor(stage_config(tmp_path))
