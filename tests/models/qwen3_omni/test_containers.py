"""What libav may read, and what it never gets to see."""

from __future__ import annotations

import numpy as np
import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.models.qwen3_omni.containers import VIDEO_CONTAINERS, decode_track, demuxer_of, opened, video_track
from tests.models.qwen3_omni.files import encoded_track, encoded_video, item
from tests.references.qwen3_omni_cases import film, noise

TONE = (0.3 * np.sin(2 * np.pi * 440 * np.arange(44_100) / 44_100)).astype(np.float32)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\x00\x00\x00\x18ftypisom", "mov"),
        (b"\x00\x00\x00\x18moov....", "mov"),
        (b"\x1aE\xdf\xa3....", "matroska"),
        (b"RIFF....AVI LIST", "avi"),
        (b"RIFF....WAVEfmt ", None),
        (b"ID3\x04", "mp3"),
        (b"\xff\xfb\x90\xc4", "mp3"),
        (b"\xff\xf1P\x80", "aac"),
        (b"#EXTM3U\n", None),
        (b"ffconcat version 1.0\n", None),
        (b"<?xml version", None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_the_demuxer_follows_from_the_first_bytes(data: bytes, name: str | None) -> None:
    """Fault: libav's guess, which may be a playlist that names files of this host."""
    assert demuxer_of(data) == name


def test_a_playlist_is_refused_even_as_a_video() -> None:
    """Fault: a file that has libav open others."""
    with pytest.raises(InvalidRequestError, match=r"begin with b'#EXTM3U.*a whole file: MP4, Matroska, AVI"):
        decode_track(item("video", b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"), 10)


@pytest.mark.parametrize(("form", "codec"), [("mp4", "mpeg4"), ("matroska", "mpeg4"), ("avi", "mjpeg")])
def test_the_sound_of_a_video_is_heard(form: str, codec: str) -> None:
    """Fault: another scale, another rate, or silence."""
    track = decode_track(item("video", encoded_video(film(5, 32, 32), form=form, codec=codec, sound=TONE)), 10)
    assert track is not None
    samples, rate = track
    assert rate == 44_100 and samples.dtype == np.float32 and 44_100 <= len(samples) < 44_100 + 3_000
    assert np.abs(samples[2_000:42_000]).max() == pytest.approx(0.3, abs=0.02)


def test_a_silent_video_has_no_sound() -> None:
    """Fault: an error for a video that is merely silent."""
    assert decode_track(item("video", encoded_video(film(5, 32, 32))), 10) is None


@pytest.mark.parametrize("codec", ["pcm_s16le", "pcm_s32le", "pcm_u8", "pcm_f32le"])
def test_every_kind_of_sample_has_the_same_scale(codec: str) -> None:
    """Fault: integers that are taken for numbers from -1 to 1, or shifted ones of one byte."""
    sound = noise(20_000)
    track = decode_track(item("audio", encoded_track(sound, 44_100, "matroska", codec)), 10)
    assert track is not None and len(track[0]) == 20_000
    np.testing.assert_allclose(track[0], sound, atol=0.02 if codec == "pcm_u8" else 1e-4)


@pytest.mark.parametrize(("form", "codec"), [("ipod", "alac"), ("matroska", "pcm_s16le")])
def test_channels_are_averaged(form: str, codec: str) -> None:
    """Fault: samples of the channels, one after the other; planar samples read as interleaved ones."""
    left, right = noise(20_000, 1), noise(20_000, 2)
    data = encoded_track(np.stack([left, right]), 44_100, form, codec)
    track = decode_track(item("audio", data), 10)
    assert track is not None
    np.testing.assert_allclose(track[0][:20_000], (left + right) / 2, atol=1e-4)


def test_codecs_and_tracks_that_are_not_taken_are_named() -> None:
    """Fault: a decoder that nobody has looked at, run over what a stranger sent."""
    rare = encoded_video(film(3, 32, 32), form="avi", codec="ffv1")
    refused = pytest.raises(InvalidRequestError, match=r"video of codec ffv1.*accepted: codecs av1, h264")
    with opened(item("video", rare), VIDEO_CONTAINERS) as container, refused:
        video_track(container, item("video", rare))
    heard = encoded_track(noise(20_000), 44_100, "mp4", "aac")
    refused = pytest.raises(InvalidRequestError, match="a file without pictures")
    with opened(item("video", heard), VIDEO_CONTAINERS) as container, refused:
        video_track(container, item("video", heard))


def test_one_thread_decodes() -> None:
    """Fault: threads of a library beside those of the stage."""
    data = encoded_video(film(3, 32, 32))
    with opened(item("video", data), VIDEO_CONTAINERS) as container:
        context = video_track(container, item("video", data)).codec_context
        assert context.thread_count == 1 and context.thread_type.name == "NONE"
