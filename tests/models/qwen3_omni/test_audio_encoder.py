"""The encoder of sound beside transformers' own, with random weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from omnistage.modeling.folder import Section
from omnistage.models.qwen3_omni import audio_encoder, encoder_layers
from omnistage.models.qwen3_omni.audio import rows_of_frames
from omnistage.models.qwen3_omni.audio_encoder import AudioEncoder
from omnistage.models.qwen3_omni.settings import audio_settings
from tests.models.qwen3_omni.towers import expect_as_near, redrawn, saved, weights_of

BANDS, CHUNK, WINDOW_ROWS = 20, 100, 26
CONFIG: dict[str, Any] = {
    "num_mel_bins": BANDS,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "d_model": 32,
    "n_window": CHUNK // 2,
    "n_window_infer": 2 * CHUNK,
    "downsample_hidden_size": 8,
    "output_dim": 24,
}
LENGTHS = (1, 7, 8, 9, 37, 97, 99, 100, 101, 108, 109, 196, 199, 200, 201, 230, 300, 401, 1000)


@pytest.fixture(scope="module")
def theirs() -> Any:
    from transformers.models.qwen3_omni_moe import configuration_qwen3_omni_moe, modeling_qwen3_omni_moe

    config = configuration_qwen3_omni_moe.Qwen3OmniMoeAudioEncoderConfig(**CONFIG)
    return redrawn(modeling_qwen3_omni_moe.Qwen3OmniMoeAudioEncoder(config))


@pytest.fixture(scope="module")
def folder(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(theirs, tmp_path_factory.mktemp("audio"))


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> AudioEncoder:
    weights = weights_of(folder, dtype)
    made = AudioEncoder(weights, audio_settings(Section({"audio_config": CONFIG}, "config.json")))
    weights.expect_all_read()
    return made


@pytest.fixture(scope="module")
def ours(folder: Path) -> AudioEncoder:
    return loaded(folder)


def sounds_of(lengths: Sequence[int]) -> list[torch.Tensor]:
    return [torch.randn(BANDS, length, generator=torch.Generator().manual_seed(length)) for length in lengths]


@torch.inference_mode()
def encoded(module: Any, sounds: Sequence[torch.Tensor]) -> torch.Tensor:
    """What transformers makes of them in one call."""
    lengths = torch.tensor([sound.shape[1] for sound in sounds])
    made: torch.Tensor = module(torch.cat(list(sounds), dim=1), feature_lens=lengths).last_hidden_state
    return made


@torch.inference_mode()
def heard(encoder: AudioEncoder, lengths: Sequence[int]) -> torch.Tensor:
    return encoder(sounds_of(lengths))


def expect_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("frames", LENGTHS)
def test_rows_are_those_of_transformers(ours: AudioEncoder, theirs: Any, frames: int) -> None:
    """Fault: a border of a chunk or a window one frame beside its place; a last chunk that hears less padding, or more."""
    found = heard(ours, [frames])
    assert len(found) == rows_of_frames(frames, CHUNK // 2)
    expect_near(found, encoded(theirs, sounds_of([frames])))


def test_several_sounds_are_one_call(ours: AudioEncoder, theirs: Any) -> None:
    """Fault: rows in the order of lengths; attention over the border of a sound; chunks of another sound."""
    lengths = [length for length in LENGTHS if length >= CHUNK][::-1]
    expect_near(heard(ours, lengths), encoded(theirs, sounds_of(lengths)))


def test_company_changes_nothing(ours: AudioEncoder, theirs: Any) -> None:
    """Fault: sound shorter than a chunk hears the padding that longer sound brings, as it does in transformers."""
    expect_near(heard(ours, LENGTHS), torch.cat([encoded(theirs, sounds_of([length])) for length in LENGTHS]))


def test_bfloat16_is_as_near_as_that_of_transformers(folder: Path, theirs: Any) -> None:
    """Fault: what transformers computes in float32 is rounded on the way."""
    lengths = (230, 1000)
    rounded = encoded(copy.deepcopy(theirs).to(torch.bfloat16), sounds_of(lengths))
    expect_as_near(heard(loaded(folder, torch.bfloat16), lengths), rounded, encoded(theirs, sounds_of(lengths)))


def test_long_sound_goes_in_parts(ours: AudioEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: memory that grows with the length of sound; padding that is computed; scores of one window's rows with another's."""
    lengths = (1000, 37, 401, 850)
    whole = heard(ours, lengths)
    attended: list[torch.Size] = []
    convolved: list[int] = []
    attend, convolve = functional.scaled_dot_product_attention, functional.conv2d

    def watched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        attended.append(q.shape)
        return attend(q, k, v)

    def counted(x: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
        convolved.append(x.shape[0] * x.shape[1] * x.shape[3])
        return convolve(x, *others, **named)

    monkeypatch.setattr(encoder_layers, "PART_ROWS", 2 * WINDOW_ROWS)
    monkeypatch.setattr(audio_encoder, "CHUNKS_AT_ONCE", 2)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(functional, "conv2d", counted)
    expect_near(heard(ours, lengths), whole)
    assert max(windows * rows for windows, _, rows, _ in attended) <= 2 * WINDOW_ROWS
    assert max(rows for _, _, rows, _ in attended) == WINDOW_ROWS
    assert sum(windows * rows for windows, _, rows, _ in attended) == CONFIG["encoder_layers"] * len(whole)
    frames = convolved[::3]  # of the first of three convolutions, which has one channel
    assert max(frames) <= 2 * CHUNK
    assert sum(lengths) <= sum(frames) < sum(lengths) + 8 * len(lengths)
