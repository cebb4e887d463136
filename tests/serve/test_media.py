"""Samples to bytes: headers, lengths, clipping."""

import io
import struct

import numpy as np
import pytest
import soundfile

from omnistage.core.errors import InvalidRequestError
from omnistage.serve.media import SILENCE, audio_format, encoded, pcm16, streamed, wav_header

SINE = np.sin(np.arange(24000) * 0.1).astype(np.float32)


def test_samples_are_clipped_not_wrapped() -> None:
    """Fault: a sample above 1 becomes the loudest click there is; one that is no number becomes anything."""
    samples = np.array([0.0, 1.0, -1.0, 1.5, -3.0, np.nan, np.inf], np.float32)
    assert struct.unpack("<7h", pcm16(samples)) == (0, 32767, -32767, 32767, -32767, 0, 32767)


def test_a_wav_plays() -> None:
    """Fault: a header that does not fit what follows."""
    samples, rate = soundfile.read(io.BytesIO(encoded(SINE, 16000, "wav")), dtype="float32")
    assert rate == 16000
    assert np.abs(samples - SINE).max() < 1e-4
    assert len(wav_header(24000, 10)) == 44


def test_a_streamed_wav_has_one_header_and_plays() -> None:
    """Fault: every piece begins with a header, which is heard as a click."""
    data = b"".join(streamed(piece, 24000, "wav", first=n == 0) for n, piece in enumerate(np.split(SINE, 4)))
    assert len(data) == 44 + 2 * len(SINE)
    samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    assert (rate, len(samples)) == (24000, len(SINE))


@pytest.mark.parametrize("form", ["mp3", "flac", "opus"])
def test_compressed_formats_play(form: str) -> None:
    """Fault: bytes of another format than the declared one, or of another length."""
    data = encoded(SINE, 24000, form)
    samples, rate = soundfile.read(io.BytesIO(data))
    assert rate == 24000
    assert abs(len(samples) - len(SINE)) < 2000
    assert data[:4] in (b"fLaC", b"OggS") or data[0] == 0xFF


@pytest.mark.parametrize("form", ["wav", "pcm16", "flac", "mp3", "opus"])
def test_no_sample_at_all(form: str) -> None:
    """Fault: an answer without sound breaks the encoder."""
    assert isinstance(encoded(SILENCE, 24000, form), bytes)


def test_formats() -> None:
    """Fault: a format is accepted that the reply cannot be in."""
    assert [audio_format(None, streamed=flag) for flag in (False, True)] == ["wav", "pcm16"]
    assert audio_format("pcm", streamed=True) == "pcm16"
    with pytest.raises(
        InvalidRequestError, match=r"audio\.format: 'mp3' is not accepted; accepted: one of pcm16, pcm, wav"
    ):
        audio_format("mp3", streamed=True)
