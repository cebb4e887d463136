"""What the JSON files of a folder say; what is absent, wrong or of another pipeline is one line that names file and key."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from omnistage.core.errors import BrokenCheckpointError
from omnistage.models.flux.loader import load
from omnistage.models.flux.settings import flux_settings
from tests.models.easel import stage_config


def changed(folder: Path, to: Path, file: str, **changes: Any) -> Path:
    """A copy of the folder in which keys of one file are others."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    (to / file).write_text(json.dumps(json.loads((to / file).read_text()) | changes))
    return to


def test_settings(dev_folder: Path, schnell_folder: Path) -> None:
    """Fault: a key that is read under another name falls back to the published model's."""
    dev, schnell = flux_settings(dev_folder), flux_settings(schnell_folder)
    assert (dev.guided, dev.scale, dev.multiple, dev.latents, dev.clip_tokens) == (True, 8, 16, 4, 77)
    assert not schnell.guided


@pytest.mark.parametrize(
    ("file", "changes", "told"),
    [
        (
            "model_index.json",
            {"vae": ["diffusers", "AutoencoderTiny"]},
            "vae is ['diffusers', 'AutoencoderTiny']; accepted",
        ),
        ("model_index.json", {"text_encoder_2": ["os", "system"]}, "accepted: ['transformers', 'T5EncoderModel']"),
        ("model_index.json", {"transformer": None}, "model_index.json: transformer is missing; accepted: ['diffusers'"),
        ("transformer/config.json", {"patch_size": 2}, "patch_size is 2; accepted: 1, as FLUX.1"),
        ("transformer/config.json", {"in_channels": 64}, "in_channels is 64; accepted: 16, as vae"),
        (
            "transformer/config.json",
            {"joint_attention_dim": 8},
            "joint_attention_dim is 8; accepted: 32, as text_encoder_2",
        ),
        ("transformer/config.json", {"pooled_projection_dim": 8}, "is 8; accepted: 24, as text_encoder has it"),
        ("transformer/config.json", {"num_layers": 0}, "num_layers is 0; accepted: an integer >= 1"),
        ("transformer/config.json", {"num_single_layers": 10**9}, "num_single_layers is 1000000000; accepted: at most"),
        ("transformer/config.json", {"num_layers": 3}, "no tensor transformer_blocks.2."),
        ("transformer/config.json", {"num_attention_heads": 3}, "cannot be read: "),
        ("text_encoder_2/config.json", {"num_layers": 3}, "no tensor encoder.block.2."),
        ("vae/config.json", {"block_out_channels": 8}, "block_out_channels is 8; accepted: a list of integers"),
        ("vae/config.json", {"scaling_factor": "x"}, "vae/config.json: scaling_factor is 'x'; accepted: a number > 0"),
        ("scheduler/scheduler_config.json", {"num_train_timesteps": 0}, "scheduler cannot be used as a FlowMatchEuler"),
        ("scheduler/scheduler_config.json", {"max_image_seq_len": 256}, "cannot be used as a FlowMatchEulerDiscrete"),
        ("scheduler/scheduler_config.json", {"max_shift": 1e300}, "cannot be used as a FlowMatchEulerDiscrete"),
        ("scheduler/scheduler_config.json", {"_class_name": "DDIMScheduler"}, "_class_name is 'DDIMScheduler'"),
        (
            "scheduler/scheduler_config.json",
            {"stochastic_sampling": True},
            "stochastic_sampling is True; accepted: false",
        ),
    ],
)
def test_what_is_wrong_is_named(
    dev_folder: Path, tmp_path: Path, file: str, changes: dict[str, Any], told: str
) -> None:
    """Fault: another pipeline's checkpoint is drawn with, or random weights in place of those that are not there."""
    with pytest.raises(BrokenCheckpointError) as error:
        load(stage_config(changed(dev_folder, tmp_path, file, **changes)))
    assert told in error.value.message and "\n" not in error.value.message
