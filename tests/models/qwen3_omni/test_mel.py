"""The mel spectrum against its definition, frame by frame; test_audio.py compares it with transformers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omnistage.models.qwen3_omni.mel import log_mel, mel_bands
from omnistage.models.qwen3_omni.settings import Sound
from tests.references.qwen3_omni_cases import noise

SOUND = Sound(mel_bands=128, sampling_rate=16_000, hop_length=160, n_fft=400)


def slowly(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """[bands, frames] by the sums of the definition."""
    padded = np.concatenate([samples[200:0:-1], samples, samples[-2:-202:-1]]).astype(float)
    hann = np.sin(np.pi * np.arange(400) / 400) ** 2
    turns = np.exp(-2j * np.pi * np.outer(np.arange(201), np.arange(400)) / 400)
    power = [np.abs(turns @ (padded[at : at + 400] * hann)) ** 2 for at in range(0, len(samples) // 160 * 160, 160)]
    logs = np.log10(np.maximum(mel_bands(SOUND) @ np.array(power).T, 1e-10))
    shifted: npt.NDArray[np.float64] = (np.maximum(logs, logs.max() - 8) + 4) / 4
    return shifted


def test_frames_are_those_of_the_definition() -> None:
    """Fault: a window that is off by half a hop, mirrored ends with the last sample twice, a floor that is not the maximum's."""
    samples = noise(1_777)
    made = log_mel(samples, SOUND)
    assert made.shape == (128, 11) and made.dtype == np.float32
    np.testing.assert_allclose(made, slowly(samples), atol=1e-6)


def test_a_pure_tone_keeps_its_numbers_where_they_are_tiny() -> None:
    """Fault: sums in single precision, which are noise 80 dB below the loudest band."""
    tone = (0.5 * np.sin(2 * np.pi * 1000 * np.arange(3_200) / 16_000)).astype(np.float32)
    np.testing.assert_allclose(log_mel(tone, SOUND), slowly(tone), atol=1e-6)


def test_pieces_of_a_long_sound_have_no_borders() -> None:
    """Fault: frames lost or doubled where one piece of the spectrum ends."""
    long = noise(160 * 5_000 + 7)
    whole, begin = log_mel(long, SOUND), log_mel(long[: 160 * 2_100], SOUND)
    assert whole.shape == (128, 5_000)
    np.testing.assert_allclose(whole[:, :2_090], begin[:, :2_090], atol=1e-5)


def test_bands_are_triangles_of_area_one() -> None:
    """Fault: loudness that depends on how wide a band is. Bins lie 40 Hz apart: a sum over few of them is not quite the area."""
    bands = mel_bands(SOUND)
    assert bands.shape == (128, 201) and (bands >= 0).all()
    assert bands[0].argmax() == 1 and bands[-1].argmax() > 190
    np.testing.assert_allclose(bands[60:].sum(axis=1) * 40, 1.0, atol=0.1)
