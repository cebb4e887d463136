"""The logarithm of the mel spectrum of a sound, as Whisper's feature extractor defines it (Radford et al., 2022): Hann windows of
n_fft samples, centred at every hop, mirrored at both ends; power; triangular bands on Slaney's mel scale, each of area 1; log10,
cut 8 below its maximum, and (x + 4) / 4.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from omnistage.models.qwen3_omni.settings import Sound

_BLOCK_FRAMES = 2048
_FLOOR = 1e-10
_LINEAR_HZ = 200 / 3  # width of a mel below 1 kHz
_BEND_HZ, _BEND_MEL = 1000.0, 15.0
_LOG_STEP = np.log(6.4) / 27.0  # above it, 27 mels span a factor of 6.4
_HIGHEST_HZ = 8000.0


def log_mel(samples: npt.NDArray[np.float32], sound: Sound) -> npt.NDArray[np.float32]:
    """[samples] -> [mel bands, samples // hop_length]. Needs more than n_fft / 2 samples."""
    reach, hop = sound.n_fft // 2, sound.hop_length
    padded = np.pad(samples, reach, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, sound.n_fft)[::hop]
    frames = len(samples) // hop
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(sound.n_fft) / sound.n_fft)
    bands = mel_bands(sound)
    made = np.empty((sound.mel_bands, frames))
    for start in range(0, frames, _BLOCK_FRAMES):
        end = min(frames, start + _BLOCK_FRAMES)
        spectrum = np.fft.rfft(windows[start:end] * hann)  # [frames, bins]
        power = spectrum.real**2 + spectrum.imag**2
        made[:, start:end] = np.log10(np.maximum(bands @ power.T, _FLOOR))
    scaled: npt.NDArray[np.float64] = (np.maximum(made, made.max() - 8.0) + 4.0) / 4.0
    return scaled.astype(np.float32)


@lru_cache(maxsize=1)
def mel_bands(sound: Sound) -> npt.NDArray[np.float64]:
    """[mel bands, n_fft // 2 + 1]: what each bin gives to each band."""
    bins = np.linspace(0, sound.sampling_rate / 2, sound.n_fft // 2 + 1)
    edges = _hz(np.linspace(0, _mel(_HIGHEST_HZ), sound.mel_bands + 2))
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (bins - low) / (middle - low), (high - bins) / (high - middle)
    triangles: npt.NDArray[np.float64] = np.maximum(0, np.minimum(rising, falling)) * (2 / (high - low))
    return triangles


def _mel(hz: float) -> float:
    """Slaney's scale: linear up to 1 kHz, then logarithmic."""
    return float(_BEND_MEL + np.log(hz / _BEND_HZ) / _LOG_STEP) if hz >= _BEND_HZ else hz / _LINEAR_HZ


def _hz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    above = _BEND_HZ * np.exp(_LOG_STEP * (mels - _BEND_MEL))
    return np.where(mels >= _BEND_MEL, above, mels * _LINEAR_HZ)
