"""What the JSON files of a folder say; what is absent, wrong or of another pipeline is one line that names file and key."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from omnistage.core.errors import BrokenCheckpointError
from omnistage.models.qwen_image.loader import load
from omnistage.models.qwen_image.settings import picture_sizes, text_shape, transformer_shape, vae_shape
from tests.models.easel import stage_config


def changed(folder: Path, to: Path, file: str, **changes: Any) -> Path:
    """A copy of the folder in which keys of one file are others; None removes one."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    settings = json.loads((to / file).read_text())
    for key, value in changes.items():
        settings.pop(key, None)
        if value is not None:
            settings[key] = value
    (to / file).write_text(json.dumps(settings))
    return to


def test_shapes(folder: Path) -> None:
    """Fault: a key that is read under another name falls back to the published model's size."""
    transformer, vae, text = transformer_shape(folder), vae_shape(folder), text_shape(folder)
    assert (transformer.width, transformer.num_layers, transformer.channels) == (64, 3, 16)
    assert (vae.channels, vae.scale, vae.mean[0]) == ((8, 16, 16), 4, 0.3)
    assert (text.head_dim, text.rope_sections, text.rope_theta) == (8, (2, 1, 1), 1e4)
    assert picture_sizes(vae, {}).default == 512 and picture_sizes(vae, {}).multiple == 8
    assert picture_sizes(vae, {"sides": [64]}).only == (64,)


def test_decoders_keys_beside_those_of_the_vision_encoder(folder: Path, tmp_path: Path) -> None:
    """Fault: folders written by earlier transformers are refused."""
    own = json.loads((folder / "text_encoder" / "config.json").read_text())["text_config"]
    own["rope_scaling"] = {"type": "mrope", "mrope_section": [2, 1, 1]}
    older = changed(
        folder, tmp_path, "text_encoder/config.json", **own | {"text_config": None, "rope_parameters": None}
    )
    config = json.loads((older / "text_encoder" / "config.json").read_text()) | {"rope_theta": 1e4}
    (older / "text_encoder" / "config.json").write_text(json.dumps(config))
    assert text_shape(older) == text_shape(folder)


@pytest.mark.parametrize(
    ("file", "changes", "told"),
    [
        ("transformer/config.json", {"guidance_embeds": True}, "guidance_embeds is True; accepted: false"),
        ("transformer/config.json", {"use_layer3d_rope": True}, "use_layer3d_rope is True; accepted: false"),
        ("transformer/config.json", {"axes_dims_rope": [8, 4, 2]}, "axes_dims_rope is [8, 4, 2]; accepted: three even"),
        ("transformer/config.json", {"out_channels": 8}, "out_channels is 8; accepted: 4"),
        ("transformer/config.json", {"in_channels": 32, "out_channels": 8}, "in_channels 32, vae has z_dim 4"),
        (
            "transformer/config.json",
            {"joint_attention_dim": 8},
            "joint_attention_dim 8, text_encoder has hidden_size 32",
        ),
        ("transformer/config.json", {"num_layers": 4}, "no tensor transformer_blocks.3.img_mod.1.weight"),
        ("vae/config.json", {"attn_scales": [0.5]}, "attn_scales is [0.5]; accepted: an empty list"),
        ("vae/config.json", {"temperal_downsample": [True]}, "temperal_downsample is [True]; accepted: a list of 2"),
        ("vae/config.json", {"latents_std": [1.0]}, "latents_std is [1.0]; accepted: a list of 4 numbers"),
        ("vae/config.json", {"base_dim": 16}, "config.json asks for"),
        ("scheduler/scheduler_config.json", {"use_karras_sigmas": True}, "use_karras_sigmas is True; accepted: false"),
        ("scheduler/scheduler_config.json", {"_class_name": "DDIMScheduler"}, "_class_name is 'DDIMScheduler'"),
        (
            "scheduler/scheduler_config.json",
            {"time_shift_type": "odd"},
            "time_shift_type is 'odd'; accepted: exponential or",
        ),
    ],
)
def test_what_is_wrong_is_named(folder: Path, tmp_path: Path, file: str, changes: dict[str, Any], told: str) -> None:
    """Fault: another pipeline's checkpoint is drawn with, or fails in its first request."""
    with pytest.raises(BrokenCheckpointError) as error:
        load(stage_config(changed(folder, tmp_path, file, **changes)))
    assert told in error.value.message and "\n" not in error.value.message
