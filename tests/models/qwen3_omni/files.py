"""Encoded files for the tests, made here: pictures by Pillow, sounds by soundfile, videos with tracks of both by PyAV."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import soundfile
from PIL import Image

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media


def item(kind: str, data: bytes) -> Media:
    return Media(kind=kind, data=data, where=f"messages[0].content[0].{kind}")  # type: ignore[arg-type]


def encoded_picture(picture: npt.NDArray[np.uint8], form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, form, **options)
    return buffer.getvalue()


def png_of_size(width: int, height: int) -> bytes:
    """A PNG whose header says how large it is, and which holds one line of zeros."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


def encoded_sound(samples: npt.NDArray[np.float32], rate: int, form: str, subtype: str | None = None) -> bytes:
    """`samples` [frames] or [frames, channels]."""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=form, subtype=subtype)
    return buffer.getvalue()


def encoded_video(
    frames: Iterable[npt.NDArray[np.uint8]],
    *,
    rate: int = 25,
    form: str = "mp4",
    codec: str = "mpeg4",
    sound: npt.NDArray[np.float32] | None = None,
    sound_rate: int = 44_100,
    turned: int = 0,
) -> bytes:
    """A file with a track of `frames`, and one of `sound` (mono) where there is some. `turned`: by how many degrees, against the
    clock, who shows it is to turn it."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=form) as container:
        first, *rest = frames
        pictures: Any = container.add_stream(codec, rate=rate)
        pictures.height, pictures.width = first.shape[:2]
        if turned:
            pictures.set_display_rotation(turned)
        pictures.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        coded = "aac" if form == "mp4" else "pcm_s16le"
        track: Any = None if sound is None else container.add_stream(coded, rate=sound_rate, layout="mono")
        for picture in (first, *rest):
            container.mux(pictures.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(pictures.encode(None))
        if sound is not None:
            frame = av.AudioFrame.from_ndarray(sound[None], format="fltp", layout="mono")
            frame.sample_rate = sound_rate
            container.mux(track.encode(frame))
            container.mux(track.encode(None))
    return buffer.getvalue()


def encoded_track(sound: npt.NDArray[np.float32], rate: int, form: str, codec: str) -> bytes:
    """A file with one track of sound, [samples] or [channels, samples]."""
    buffer = io.BytesIO()
    planes = np.atleast_2d(sound)
    layout = "mono" if len(planes) == 1 else "stereo"
    with av.open(buffer, "w", format=form) as container:
        track: Any = container.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(planes, format="fltp", layout=layout)
        frame.sample_rate = rate
        container.mux(track.encode(frame))
        container.mux(track.encode(None))
    return buffer.getvalue()


def cuts(data: bytes) -> list[bytes]:
    """Beginnings of a file, from nothing to nearly all."""
    return [data[: len(data) * part // 16] for part in range(16)] + [data[:-2]]


def scrambled(data: bytes, seed: int, share: float = 0.02) -> bytes:
    """The file with some of its bytes replaced, the first sixteen kept so that it is still taken for what it was."""
    chance = np.random.default_rng(seed)
    made = np.frombuffer(data, np.uint8).copy()
    places = chance.integers(16, len(made), max(1, int(len(made) * share)))
    made[places] = chance.integers(0, 256, len(places))
    return made.tobytes()


def is_refused(read: Callable[[Media], object], media: Media) -> bool:
    """True where it is, by name; what is raised otherwise is raised."""
    try:
        read(media)
    except InvalidRequestError as error:
        return error.field == media.where
    return False
