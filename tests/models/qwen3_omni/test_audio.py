"""Sounds become the features that transformers makes of them, alone; what is no sound, or too long a one, is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.core.spec import TensorSpec
from omnistage.models.qwen3_omni.audio import read_audio, rows_of_frames, to_rate
from omnistage.models.qwen3_omni.limits import MediaLimits
from omnistage.models.qwen3_omni.settings import Sound
from tests.models.qwen3_omni.files import cuts, encoded_sound, encoded_track, is_refused, item, scrambled
from tests.references.qwen3_omni_cases import LENGTHS, MEDIA, RATE, SOUNDS, media_of, noise

SOUND = Sound(mel_bands=128, sampling_rate=RATE, hop_length=160, n_fft=400)
LIMITS = MediaLimits()
WINDOW, ROOM = 50, 100_000


def read(media: Media, limits: MediaLimits = LIMITS, room: int = ROOM) -> npt.NDArray[np.float32]:
    return read_audio(media, SOUND, WINDOW, limits, room)


def tone(count: int, rate: int, hz: float = 440.0) -> npt.NDArray[np.float32]:
    return (0.3 * np.sin(2 * np.pi * hz * np.arange(count) / rate)).astype(np.float32)


@pytest.mark.parametrize("name", SOUNDS)
def test_features_are_those_of_transformers(name: str) -> None:
    """Fault: other windows, bands or floors, or a frame more or less."""
    wanted = load_file(MEDIA)[f"sound.{name}"]
    made = read(media_of("audio", SOUNDS[name]))
    assert made.shape == wanted.shape and made.dtype == np.float32
    np.testing.assert_allclose(made, wanted, atol=1e-5, rtol=0)


def test_rows_are_counted_as_the_encoder_makes_them() -> None:
    """Fault: a prompt with another number of places than the encoder has rows."""
    assert [rows_of_frames(length, WINDOW) for length in LENGTHS] == load_file(MEDIA)["sound.rows"].tolist()
    assert rows_of_frames(0, WINDOW) == 0


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
def test_a_tone_stays_the_tone_at_another_rate(rate: int) -> None:
    """Fault: sound that is stretched, or a sample lost or added."""
    count = rate + 7
    made = to_rate(tone(count, rate), rate, RATE)
    assert len(made) == -(-count * RATE // rate) and made.dtype == np.float32
    inner = slice(400, RATE - 400)  # the filter rings at the ends
    np.testing.assert_allclose(made[inner], tone(len(made), RATE)[inner], atol=1e-3)


def test_nothing_is_resampled_at_the_models_own_rate() -> None:
    """Fault: a filter where there is nothing to do."""
    samples = noise(1000)
    assert to_rate(samples, 16_000.0, 16_000) is samples


@pytest.mark.parametrize(
    ("form", "subtype"), [("WAV", "FLOAT"), ("FLAC", "PCM_24"), ("AIFF", "PCM_24"), ("WAV", "PCM_16")]
)
def test_a_file_is_read_as_its_samples_are(form: str, subtype: str) -> None:
    """Fault: another scale, or samples that are dropped."""
    made = read(item("audio", encoded_sound(SOUNDS["second"], RATE, form, subtype)))
    exact = subtype != "PCM_16"
    np.testing.assert_allclose(made, read(media_of("audio", SOUNDS["second"])), atol=1e-4 if exact else 2e-2)


def test_channels_are_averaged() -> None:
    """Fault: the left side alone, or one channel after the other."""
    left, right = noise(RATE, 1), noise(RATE, 2)
    both = encoded_sound(np.stack([left, right], axis=1), RATE, "WAV", "FLOAT")
    np.testing.assert_allclose(read(item("audio", both)), read(media_of("audio", (left + right) / 2)), atol=1e-5)


@pytest.mark.parametrize(
    ("form", "codec", "rate"),
    [("ipod", "aac", 44_100), ("adts", "aac", 44_100), ("matroska", "libopus", 48_000), ("mp4", "aac", 48_000)],
)
def test_tracks_in_containers_are_heard(form: str, codec: str, rate: int) -> None:
    """Fault: what phones and browsers record is refused."""
    made = read(item("audio", encoded_track(tone(2 * rate, rate), rate, form, codec)))
    assert 200 <= made.shape[1] <= 208
    steady = made[:, 50:150].mean(axis=1)
    assert steady.argmax() == read(media_of("audio", tone(RATE, RATE)))[:, 50].argmax()


@pytest.mark.parametrize("form", ["MP3", "OGG"])
def test_compressed_sound_is_heard(form: str) -> None:
    """Fault: a kind of file that everybody has."""
    made = read(item("audio", encoded_sound(tone(RATE, RATE), RATE, form)))
    assert made.shape == (128, 100)
    assert made[:, 50].argmax() == read(media_of("audio", tone(RATE, RATE)))[:, 50].argmax()


def test_raw_samples_have_the_rate_that_is_said() -> None:
    """Fault: raw samples at 48 kHz, read as if they were three times as long."""
    made = read(media_of("audio", tone(48_000, 48_000), 48_000.0))
    assert made.shape == (128, 100)


@pytest.mark.parametrize(
    ("media", "words"),
    [
        (item("audio", b""), "'0 bytes' is not accepted"),
        (item("audio", b"no sound at all"), "accepted: a whole sound: WAV, .*MP3"),
        (item("audio", encoded_sound(noise(0), RATE, "WAV")), "no samples"),
        (item("audio", encoded_sound(noise(200), RATE, "WAV")), "200 samples at 16000 Hz.*at least 201"),
        (item("audio", encoded_sound(noise(RATE), RATE, "WAV")[:-100]), "31944 bytes of a file of 32044"),
        (item("audio", encoded_sound(noise(900), 900, "WAV")), "a rate of 900 Hz.*1000 to 384000 Hz"),
        (item("audio", encoded_sound(noise(RATE), RATE, "AU")), "format AU"),
        (media_of("audio", np.array([0.0, np.nan] * 400, np.float32)), "samples that are no numbers"),
        (media_of("audio", noise(500), 1e9), "a rate of 1e\\+09 Hz"),
        (Media(kind="audio", data=bytes(8), array=TensorSpec("float64", (1,)), where="w"), "float32 \\[samples\\]"),
        (Media(kind="audio", data=b"", array=TensorSpec("float32", (0,)), where="w"), "none of them 0"),
        (item("audio", b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"), "begin with b'#EXTM3U"),
    ],
)
def test_what_is_no_sound_is_named(media: Media, words: str) -> None:
    """Fault: an error of a library, without the field it came from."""
    with pytest.raises(InvalidRequestError, match=words) as caught:
        read(media)
    assert caught.value.field == media.where


def test_length_and_room_are_asked_before_the_features() -> None:
    """Fault: an hour of sound that is decoded, and then found to be too much."""
    ten = item("audio", encoded_sound(noise(10 * RATE), RATE, "WAV"))
    with pytest.raises(InvalidRequestError, match=r"10\.0 s.*at most 5 s"):
        read(ten, MediaLimits(audio_seconds=5))
    with pytest.raises(InvalidRequestError, match="'130 tokens' is not accepted; accepted: at most 129"):
        read(ten, room=129)
    with pytest.raises(InvalidRequestError, match=r"more than . s of sound"):
        read(item("audio", encoded_track(noise(441_000), 44_100, "mp4", "aac")), MediaLimits(audio_seconds=5))


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3", "AIFF", "mp4", "adts"])
def test_files_that_were_cut_or_scrambled_are_read_or_refused(form: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Fault: an error of another kind, which would count as the server's, or a library that writes to the log."""
    samples = noise(20_000)
    tracked: dict[str, Any] = {"mp4": "aac", "adts": "aac"}
    whole = encoded_track(samples, RATE, form, "aac") if form in tracked else encoded_sound(samples, RATE, form)
    capfd.readouterr()
    flowing = form in ("OGG", "MP3")  # streams say nothing of their end
    assert sum(is_refused(read, item("audio", data)) for data in cuts(whole)) >= (3 if flowing else 17)
    for seed in range(20):
        is_refused(read, item("audio", scrambled(whole, seed)))
    assert capfd.readouterr().err == ""
