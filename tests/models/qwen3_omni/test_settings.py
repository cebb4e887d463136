"""What a folder says about prompts and media, and how a folder that says something else is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.folder import Section
from omnistage.models.qwen3_omni.settings import media_settings, prompt_settings, read_config
from tests.tiny.qwen3_omni import PREPROCESSOR, OmniShape, omni_settings, train_tokenizer


def settings() -> dict[str, Any]:
    return omni_settings(train_tokenizer(), OmniShape())


def folder(path: Path, **files: dict[str, Any]) -> Path:
    """`files` by name without .json; config and preprocessor_config are there anyway."""
    written = {"config": settings(), "preprocessor_config": PREPROCESSOR} | files
    for name, values in written.items():
        (path / f"{name}.json").write_text(json.dumps(values))
    return path


def no_token(_: str) -> int | None:
    """A tokenizer without the token that is asked for."""
    return None


def test_a_published_folder_is_read_from_one_file(tmp_path: Path) -> None:
    """Fault: bounds of pictures taken for videos, whose bounds the model's processor fixes."""
    where = folder(tmp_path)
    prompt = prompt_settings(read_config(where), no_token)
    assert (prompt.positions_per_second, prompt.audio_window, prompt.merge_size, prompt.speaks) == (13, 50, 2, True)
    media = media_settings(where, prompt)
    assert (media.image.least, media.image.most, media.image.factor) == (32 * 32, 128 * 128, 32)
    assert (media.video.least, media.video.most) == (128 * 32 * 32, 768 * 32 * 32)
    assert media.image.mean == (0.5, 0.5, 0.5) and media.sound.mel_bands == 128
    assert (media.sampling.fps, media.sampling.least, media.sampling.most) == (2.0, 4, 768)


def test_nested_settings_come_first_and_sizes_may_be_edges(tmp_path: Path) -> None:
    """Fault: a folder saved by a later transformers, read as if its settings were those of its old files."""
    pixels = {"patch_size": 16, "merge_size": 2, "size": {"shortest_edge": 5000, "longest_edge": 6000}}
    nested = {"image_processor": pixels, "video_processor": pixels | {"max_frames": 16}}
    where = folder(tmp_path, processor_config=nested | {"feature_extractor": {"feature_size": 128}})
    media = media_settings(where, prompt_settings(read_config(where), no_token))
    assert (media.image.least, media.image.most, media.sampling.most) == (5000, 6000, 16)
    assert media.image.mean[0] == 0.48145466


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"patch_size": 14}, "patch_size is 14; accepted: 16, as the vision encoder has it"),
        ({"feature_size": 80}, "feature_size is 80; accepted: 128, as the audio encoder has it"),
        ({"image_mean": [0.5]}, "image_mean is \\[0.5\\]; accepted: a list of 3 numbers"),
        ({"min_pixels": "few"}, "min_pixels is 'few'; accepted: an integer >= 1"),
        ({"rescale_factor": 0}, "rescale_factor is 0; accepted: a number > 0"),
    ],
)
def test_what_the_encoders_cannot_read_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """Fault: patches of another size than the weights have, found by a crash in a forward pass."""
    where = folder(tmp_path, preprocessor_config=PREPROCESSOR | change)
    with pytest.raises(BrokenCheckpointError, match=f"preprocessor_config.json: {words}"):
        media_settings(where, prompt_settings(read_config(where), no_token))


def test_a_folder_without_settings_of_media_is_refused(tmp_path: Path) -> None:
    """Fault: defaults of some other model, taken in silence."""
    where = folder(tmp_path)
    (where / "preprocessor_config.json").unlink()
    with pytest.raises(BrokenCheckpointError, match=r"neither preprocessor_config.json nor processor_config.json"):
        media_settings(where, prompt_settings(read_config(where), no_token))


def test_a_missing_id_is_named_with_its_place() -> None:
    """Fault: KeyError for a key of a nested object."""
    config = settings()
    del config["thinker_config"]["audio_end_token_id"]
    with pytest.raises(BrokenCheckpointError, match=r"config.json: thinker_config: audio_end_token_id is missing"):
        prompt_settings(Section(config, "config.json"), no_token)
    assert prompt_settings(Section(config, "config.json"), {"<|audio_end|>": 9}.get).ids.audio_end == 9
    config["thinker_config"]["vision_config"] = 3
    with pytest.raises(BrokenCheckpointError, match=r"thinker_config: vision_config is 3; accepted: an object"):
        prompt_settings(Section(config, "config.json"), no_token)
