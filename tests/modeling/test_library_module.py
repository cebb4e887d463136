"""Modules of libraries are whole, or are not there; a fake stands in for the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.library_module import read_module


class Linear(torch.nn.Linear):
    """As a library has it: what `missing` says was made up."""

    missing: tuple[str, ...] = ()

    @classmethod
    def from_pretrained(cls, _folder: Path, **_asked: Any) -> Any:
        return cls(2, 2), {"missing_keys": set(cls.missing)}


class Incomplete(Linear):
    missing = ("weight", "bias")


@pytest.mark.parametrize("settings", [{"num_layers": 3}, {"text_config": {"num_hidden_layers": 3}}])
def test_there_are_no_more_layers_than_tensors(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Fault: the library makes a thousand million layers, one by one, before it looks whether there are weights for them."""
    save_file({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(BrokenCheckpointError, match=r"config\.json: num_\w*layers is 3; accepted: at most 2"):
        read_module(Linear, tmp_path, "float32")


def test_a_module_is_whole_or_refused(tmp_path: Path) -> None:
    """Fault: numbers that were made up are drawn with; a cut file, or a missing one, is not named."""
    with pytest.raises(BrokenCheckpointError, match=r"has no config\.json"):
        read_module(Linear, tmp_path, "float32")
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    save_file({"weight": torch.ones(2, 2)}, weights)
    assert not read_module(Linear, tmp_path, "float32").weight.requires_grad
    with pytest.raises(BrokenCheckpointError, match="the weights have no tensor bias"):
        read_module(Incomplete, tmp_path, "float32")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(BrokenCheckpointError, match=r"model\.safetensors cannot be read as safetensors"):
        read_module(Linear, tmp_path, "float32")
