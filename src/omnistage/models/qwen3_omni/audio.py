"""A sound, encoded or raw, as the audio encoder reads it: mono at the model's rate, then the logarithm of its mel spectrum.

A sound is prepared as if it were alone: its features do not depend on what else a prompt holds, so they may be kept by content.
(Feature extractors that pad a batch to its longest sound give the others up to one frame more, and other values at their ends.)
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.modeling.media import begin_of, raw
from omnistage.models.qwen3_omni.containers import AUDIO_CONTAINERS, decode_track, demuxer_of
from omnistage.models.qwen3_omni.limits import MediaLimits, check_end, check_nbytes, check_rows
from omnistage.models.qwen3_omni.mel import log_mel
from omnistage.models.qwen3_omni.settings import Sound

Samples = npt.NDArray[np.float32]

LOWEST_HZ, HIGHEST_HZ = 1_000, 384_000
"""Sampling rates that are taken."""
_FORMATS = ("WAV", "WAVEX", "FLAC", "OGG", "AIFF")
_ACCEPTED = f"a whole sound: {', '.join(_FORMATS)}, {', '.join(AUDIO_CONTAINERS)}"
_BLOCK_FRAMES = 2**16


def read_audio(media: Media, sound: Sound, window: int, limits: MediaLimits, room: int) -> npt.NDArray[np.float32]:
    """Features [mel bands, frames]. `window` is the encoder's, `room` the rows of the prompt that are left. Raises
    InvalidRequestError."""
    check_nbytes(media, limits)
    if media.array is not None:
        samples, rate = raw(media, np.float32, "samples"), media.rate or float(sound.sampling_rate)
        check_length(media, len(samples), rate, limits)
    elif demuxer_of(media.data) in AUDIO_CONTAINERS.values():
        track = decode_track(media, limits.audio_seconds)
        if track is None:
            raise InvalidRequestError.of(media.where, "a file without sound", _ACCEPTED)
        samples, rate = track
    else:
        samples, rate = _decoded(media, limits)
    check_length(media, len(samples), rate, limits)
    return features(media, samples, rate, sound, window, room)


def features(
    media: Media, samples: Samples, rate: float, sound: Sound, window: int, room: int
) -> npt.NDArray[np.float32]:
    """Features [mel bands, frames] of mono samples at any rate."""
    if not np.isfinite(samples).all():
        raise InvalidRequestError.of(media.where, "samples that are no numbers", "finite samples, nominally -1 to 1")
    samples = to_rate(samples, rate, sound.sampling_rate)
    least = sound.n_fft // 2 + 1
    if len(samples) < least:
        found = f"{len(samples)} samples at {sound.sampling_rate} Hz"
        raise InvalidRequestError.of(media.where, found, f"at least {least}")
    check_rows(media, rows_of_frames(len(samples) // sound.hop_length, window), room)
    return log_mel(samples, sound)


def rows_of_frames(frames: int, window: int) -> int:
    """Rows that the audio encoder makes of `frames`: each 2 x `window` frames become 13, the rest an eighth, rounded up three
    times."""
    whole, rest = divmod(frames, 2 * window)
    for _ in range(3):
        rest = (rest + 1) // 2
    return whole * 13 + rest


def to_rate(samples: Samples, rate: float, wanted: int) -> Samples:
    """Resampled with the high-quality filter; exactly as long as the rates say, rounded up."""
    if rate == wanted:
        return samples
    made = soxr.resample(samples, rate, wanted, quality="HQ")
    length = math.ceil(len(samples) * wanted / rate)
    return np.pad(made[:length], (0, max(0, length - len(made)))).astype(np.float32, copy=False)


def check_length(media: Media, count: int, rate: float, limits: MediaLimits) -> None:
    if not LOWEST_HZ <= rate <= HIGHEST_HZ:
        raise InvalidRequestError.of(media.where, f"a rate of {rate:g} Hz", f"{LOWEST_HZ} to {HIGHEST_HZ} Hz")
    if count < 1:
        raise InvalidRequestError.of(media.where, "no samples", _ACCEPTED)
    if count > limits.audio_seconds * rate:
        raise InvalidRequestError.of(media.where, f"{count / rate:.1f} s", f"at most {limits.audio_seconds:g} s")


class _Source(io.BytesIO):
    """A wrong file has the library seek to nowhere, in a callback from which no error can be raised."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        try:
            return super().seek(offset, whence)
        except (OverflowError, ValueError):
            return self.tell()


def _decoded(media: Media, limits: MediaLimits) -> tuple[Samples, float]:
    """Mono samples and their rate, in Hz. Channels are averaged."""
    check_end(media)
    try:
        with soundfile.SoundFile(_Source(media.data)) as file:
            if file.format not in _FORMATS:
                raise InvalidRequestError.of(media.where, f"a sound in format {file.format}", _ACCEPTED)
            check_length(media, file.frames, file.samplerate, limits)
            stated, rate = file.frames, float(file.samplerate)
            blocks = list(_mono_blocks(file, stated))
    except soundfile.LibsndfileError as error:  # whose other words name an object of ours
        told = f"{begin_of(media.data)} ({error.error_string})"
        raise InvalidRequestError.of(media.where, told, _ACCEPTED) from None
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
        raise InvalidRequestError.of(media.where, f"{begin_of(media.data)} ({error})", _ACCEPTED) from None
    samples = np.concatenate(blocks) if blocks else np.empty(0, np.float32)
    if len(samples) < stated:
        raise InvalidRequestError.of(media.where, f"{len(samples)} of {stated} samples, then the file ends", _ACCEPTED)
    return samples, rate


def _mono_blocks(file: soundfile.SoundFile, most: int) -> Iterator[Samples]:
    while most > 0:
        block = file.read(min(_BLOCK_FRAMES, most), dtype="float32", always_2d=True)  # [frames, channels]
        if not len(block):
            return
        most -= len(block)
        yield block.mean(axis=1, dtype=np.float32) if block.shape[1] > 1 else block[:, 0]
