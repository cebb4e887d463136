"""Samples to bytes. Every function works on float32 samples in [-1, 1], [samples], one channel; rates in Hz.

Encoding a file takes milliseconds to seconds, so routes call `encoded` in a thread; a piece of a stream of at most SHORT_SAMPLES
takes less than the way to a thread and back. WAV is written here (a stream needs a
header of unknown length); FLAC, MP3 and Opus (in Ogg) are libsndfile's.
"""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import soundfile

from omnistage.core.errors import InvalidRequestError

FORMATS = ("wav", "mp3", "flac", "opus", "pcm16", "pcm")
STREAMED_FORMATS = ("pcm16", "pcm", "wav")
DEFAULT_RATE = 24000
SHORT_SAMPLES = 96_000
_CONTAINERS = {"flac": ("FLAC", "PCM_16"), "mp3": ("MP3", "MPEG_LAYER_III"), "opus": ("OGG", "OPUS")}
_UNKNOWN_LENGTH = 0xFFFFFFFF
_PCM_BITS = 16

Samples = np.ndarray[Any, Any]

SILENCE: Samples = np.zeros(0, np.float32)
"""No sample at all: the sound of an answer without words."""


def audio_format(value: object, *, streamed: bool) -> str:
    """The format to answer in: checked, aliases resolved, the default where nothing was asked for."""
    accepted = STREAMED_FORMATS if streamed else FORMATS
    if value is None:
        return "pcm16" if streamed else "wav"
    if value not in accepted:
        where = " for a streamed answer" if streamed else ""
        raise InvalidRequestError.of("audio.format", value, f"one of {', '.join(accepted)}{where}")
    return "pcm16" if value == "pcm" else str(value)


def pcm16(samples: Samples) -> bytes:
    """Little-endian 16-bit samples; what lies outside [-1, 1] is clipped, what is no number becomes silence."""
    scaled = np.clip(samples.astype(np.float32, copy=False), -1.0, 1.0)
    scaled *= 32767.0
    np.rint(scaled, out=scaled)
    unknown = np.isnan(scaled)
    if unknown.any():
        scaled[unknown] = 0.0
    return scaled.astype("<i2").tobytes()


def wav_header(rate: int, data_nbytes: int | None) -> bytes:
    """44 bytes; `data_nbytes` None declares an unknown length, as a stream must."""
    data = _UNKNOWN_LENGTH if data_nbytes is None else data_nbytes
    riff = _UNKNOWN_LENGTH if data_nbytes is None else data_nbytes + 36
    frame = _PCM_BITS // 8
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, rate * frame, frame, _PCM_BITS)
    return struct.pack("<4sI4s", b"RIFF", riff, b"WAVE") + form + struct.pack("<4sI", b"data", data)


def encoded(samples: Samples, rate: int, form: str) -> bytes:
    """A whole file in `form`, one of FORMATS."""
    if form in ("pcm16", "pcm"):
        return pcm16(samples)
    if form == "wav":
        data = pcm16(samples)
        return wav_header(rate, len(data)) + data
    container, subtype = _CONTAINERS[form]
    file = io.BytesIO()
    soundfile.write(file, np.clip(np.nan_to_num(samples), -1.0, 1.0), rate, format=container, subtype=subtype)
    return file.getvalue()


def streamed(samples: Samples, rate: int, form: str, *, first: bool) -> bytes:
    """One piece of a stream in `form`, one of STREAMED_FORMATS; a WAV's header goes before the first piece only."""
    header = wav_header(rate, None) if form == "wav" and first else b""
    return header + pcm16(samples)
