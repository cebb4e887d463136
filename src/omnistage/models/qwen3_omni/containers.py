"""Files with tracks (MP4, Matroska, AVI, MP3, ADTS) through libav: which demuxer reads them, and one track after the other.

What comes from outside is not trusted. The demuxer is chosen here by the first bytes and never guessed by libav, whose guesses
include playlists that name other files; no protocol may be opened; codecs are those of a list; one thread decodes. Every fault of
a file is an InvalidRequestError that names the media. Knows no models.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.audio.frame import AudioFrame
from av.container import InputContainer

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.modeling.media import begin_of
from omnistage.models.qwen3_omni.limits import check_end
from omnistage.models.qwen3_omni.whole import MP4_BOXES

VIDEO_CONTAINERS = {"MP4": "mov", "Matroska": "matroska", "AVI": "avi"}
"""Names of containers, and libav's demuxers."""
AUDIO_CONTAINERS = {"MP3": "mp3", "MP4": "mov", "Matroska": "matroska", "ADTS": "aac"}

_VIDEO_CODECS = frozenset({"h264", "hevc", "av1", "libdav1d", "vp8", "vp9", "mpeg4", "mjpeg", "mpeg2video", "theora"})
_AUDIO_CODECS = frozenset({"aac", "mp3", "mp3float", "opus", "vorbis", "flac", "ac3", "alac"})
_AUDIO_PREFIX = "pcm_"
_OPTIONS = {"protocol_whitelist": "", "probesize": str(2**22), "analyzeduration": str(10 * 10**6)}
_MOST_CHANNELS = 64

Samples = npt.NDArray[np.float32]


def demuxer_of(data: bytes) -> str | None:
    """libav's name of the demuxer for a file that begins so; None: no container that is taken."""
    if data[4:8] in MP4_BOXES:
        return "mov"
    if data[:4] == b"\x1aE\xdf\xa3":
        return "matroska"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "avi"
    if data[:3] == b"ID3":
        return "mp3"
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0:
        return "mp3" if data[1] & 0x06 else "aac"  # the layer, of which ADTS has none
    return None


@contextmanager
def opened(media: Media, containers: dict[str, str]) -> Iterator[InputContainer]:
    """The container of an encoded file; what libav raises inside becomes an InvalidRequestError."""
    demuxer = demuxer_of(media.data)
    accepted = f"a whole file: {', '.join(containers)}"
    if demuxer not in containers.values():
        raise InvalidRequestError.of(media.where, begin_of(media.data), accepted)
    check_end(media)
    try:
        with av.open(
            io.BytesIO(media.data), "r", format=demuxer, options=_OPTIONS, metadata_errors="ignore"
        ) as container:
            yield container
    except av.FFmpegError as error:
        told = f"{begin_of(media.data)} ({error.strerror})"
        raise InvalidRequestError.of(media.where, told, accepted) from None


def video_track(container: InputContainer, media: Media) -> av.VideoStream:
    """The first track of moving pictures, to be decoded in one thread."""
    tracks = [track for track in container.streams.video if not track.disposition & av.stream.Disposition.attached_pic]
    if not tracks:
        raise InvalidRequestError.of(media.where, "a file without pictures", f"a video: {', '.join(VIDEO_CONTAINERS)}")
    track = tracks[0]
    _check_codec(track, media, _VIDEO_CODECS)
    track.codec_context.thread_type, track.codec_context.thread_count = "NONE", 1
    return track


def decode_track(media: Media, most_seconds: float) -> tuple[Samples, float] | None:
    """Mono samples and rate, in Hz, of the first sound track; None where there is none. Channels are averaged."""
    with opened(media, VIDEO_CONTAINERS | AUDIO_CONTAINERS) as container:
        if not container.streams.audio:
            return None
        track = container.streams.audio[0]
        _check_codec(track, media, _AUDIO_CODECS)
        track.codec_context.thread_type, track.codec_context.thread_count = "NONE", 1
        rate = track.rate
        if not rate or not 1 <= track.channels <= _MOST_CHANNELS:
            raise InvalidRequestError.of(media.where, f"{track.channels} channels at {rate} Hz", "a track of sound")
        blocks, count = [], 0
        for frame in container.decode(track):
            assert isinstance(frame, AudioFrame)
            blocks.append(_mono(frame))
            count += frame.samples
            if count > most_seconds * rate:
                accepted = f"at most {most_seconds:g} s"
                raise InvalidRequestError.of(media.where, f"more than {count / rate:.0f} s of sound", accepted)
    return (np.concatenate(blocks), float(rate)) if blocks else None


def _mono(frame: AudioFrame) -> Samples:
    """[samples]: integers scaled to -1 to 1, channels averaged."""
    values = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T  # [channels, samples]
    scaled = _scaled(values)
    return np.asarray(scaled.mean(axis=0) if len(scaled) > 1 else scaled[0], np.float32)


def _scaled(values: npt.NDArray[Any]) -> Samples:
    if values.dtype.kind not in "iu":
        return values.astype(np.float32)
    half = float(2 ** (8 * values.itemsize - 1))
    centre = half if values.dtype.kind == "u" else 0.0
    return np.asarray((values - centre) / half, np.float32)


def _check_codec(track: av.VideoStream | av.AudioStream, media: Media, codecs: frozenset[str]) -> None:
    name = getattr(track.codec_context, "name", "unknown")  # there is none for a codec that libav does not know
    if name not in codecs and not (track.type == "audio" and name.startswith(_AUDIO_PREFIX)):
        accepted = f"codecs {', '.join(sorted(codecs))}"
        raise InvalidRequestError.of(media.where, f"{track.type} of codec {name}", accepted)
