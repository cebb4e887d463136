"""Folders that the talker is loaded from, and those that it is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from omnistage.core.errors import BrokenCheckpointError
from omnistage.models.qwen3_omni.talker_loader import SUPPRESSED, load
from tests.models.qwen3_omni.talkers import talker_config
from tests.tiny.qwen3_omni import SHAPES, OmniShape


@pytest.fixture(scope="module")
def folder(omni: Callable[[OmniShape], Path]) -> Path:
    return omni(SHAPES[0])


def changed(folder: Path, copy: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The folder with another config.json."""
    shutil.copytree(folder, copy)
    settings = json.loads((folder / "config.json").read_text())
    change(settings)
    (copy / "config.json").write_text(json.dumps(settings))
    return copy


def test_what_no_frame_begins_with_is_suppressed(folder: Path) -> None:
    """Fault: a control code can be drawn, or the end cannot."""
    talker = load(talker_config(folder))
    bias = talker._decoder.weights.head.bias  # type: ignore[attr-defined]
    end = json.loads((folder / "config.json").read_text())["talker_config"]["codec_eos_token_id"]
    allowed = (*range(SHAPES[0].codebook), end)
    assert torch.isfinite(bias).nonzero().flatten().tolist() == list(allowed)
    assert len(bias) == SHAPES[0].codebook + SUPPRESSED
    assert talker.eos_token_ids == {end}


def test_codes_of_all_groups_are_one_table(folder: Path) -> None:
    """Fault: embeddings are held twice."""
    parts = load(talker_config(folder))._parts
    start, end = parts.codes.data_ptr(), parts.codes.data_ptr() + parts.codes.nbytes
    tables = [parts.decoder.weights.embedding, *(link.embedding for link in parts.predictor._chain.links)]
    assert all(isinstance(table, torch.Tensor) and start <= table.data_ptr() < end for table in tables)


def test_ids_of_text_have_defaults(folder: Path, tmp_path: Path) -> None:
    """Fault: a config.json that says nothing of what never changes cannot be read."""

    def silent(settings: dict[str, Any]) -> None:
        for name in ("im_start", "assistant", "tts_pad", "tts_bos", "tts_eos"):
            del settings[f"{name}_token_id"]

    ids = load(talker_config(changed(folder, tmp_path / "other", silent)))._ids
    assert ids.opening[:2] == (151644, 77091)
    assert (ids.pad, ids.begin, ids.end) == (151671, 151672, 151673)


def without_speakers(settings: dict[str, Any]) -> None:
    settings["talker_config"]["speaker_id"] = {}


def wider_predictor(settings: dict[str, Any]) -> None:
    settings["talker_config"]["code_predictor_config"]["hidden_size"] = 128


def other_activation(settings: dict[str, Any]) -> None:
    settings["talker_config"]["text_config"]["hidden_act"] = "gelu"


def no_talker(settings: dict[str, Any]) -> None:
    del settings["talker_config"]


def no_layers(settings: dict[str, Any]) -> None:
    del settings["talker_config"]["text_config"]["num_hidden_layers"]


def more_groups(settings: dict[str, Any]) -> None:
    settings["talker_config"]["num_code_groups"] = 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_speakers, "speaker_id is {}; accepted: at least one speaker"),
        (wider_predictor, "hidden_size is 128; accepted: 64, as the talker has it"),
        (other_activation, "asks for a decoder that"),
        (no_talker, "talker_config is missing"),
        (no_layers, "talker_config.text_config describes no decoder"),
        (more_groups, "no tensor talker.code_predictor.model.codec_embedding.3.weight"),
    ],
)
def test_a_folder_with_another_talker(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    """Fault: a KeyError, or noise, in place of what is wrong with the folder."""
    with pytest.raises(BrokenCheckpointError, match="(?s).*" + message.replace("{}", r"\{\}").replace(".", r"\.")):
        load(talker_config(changed(folder, tmp_path / "other", change)))
