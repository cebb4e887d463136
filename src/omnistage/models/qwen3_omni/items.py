"""The media of a prompt, one after the other: read, counted, and named by their content and by how they were read.

Equal keys make equal encoder rows, in any request. Knows no ids.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.modeling.patches import Grid
from omnistage.models.qwen3_omni.audio import features, read_audio, rows_of_frames
from omnistage.models.qwen3_omni.containers import decode_track
from omnistage.models.qwen3_omni.images import read_image
from omnistage.models.qwen3_omni.limits import MediaLimits
from omnistage.models.qwen3_omni.positions import Block
from omnistage.models.qwen3_omni.prompts import Place
from omnistage.models.qwen3_omni.settings import MediaSettings, PromptSettings
from omnistage.models.qwen3_omni.video import VideoReader

_OPTIONS = "mm_processor_kwargs."
_SOUND_OPTION, _FPS_OPTION = "use_audio_in_video", "fps"
_SLACK = 1e-6  # a caller writes 26 / 3 as 8.6667


@dataclass(frozen=True, slots=True)
class MediaOptions:
    """A caller's `mm_processor_kwargs`."""

    use_audio_in_video: bool = False
    fps: float | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> MediaOptions:
        """Raises InvalidRequestError for an option that is unknown or has another type."""
        for name in given:
            if name not in (_SOUND_OPTION, _FPS_OPTION):
                raise InvalidRequestError.unknown(_OPTIONS + name, [_OPTIONS + _SOUND_OPTION, _OPTIONS + _FPS_OPTION])
        with_sound, fps = given.get(_SOUND_OPTION, False), given.get(_FPS_OPTION)
        if type(with_sound) is not bool:
            raise InvalidRequestError.of(_OPTIONS + _SOUND_OPTION, with_sound, "true or false")
        if fps is not None and (type(fps) not in (int, float) or not 0 < fps < math.inf):
            raise InvalidRequestError.of(_OPTIONS + _FPS_OPTION, fps, "a number > 0")
        return cls(with_sound, fps)


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """What one encoder call reads of an item; see `MediaInput`."""

    kind: str
    key: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReadItem:
    """One item: the rows that it takes, and what the encoders read: pictures, then sound."""

    block: Block
    inputs: tuple[EncoderInput, ...]

    @property
    def tokens(self) -> int:
        """Of the prompt, with the marks around the rows of a video that is read with its sound."""
        return self.block.rows + (2 if self.block.is_spoken else 0)


class ItemReader:
    """See the module. Raises InvalidRequestError for whatever a caller sent that cannot be read."""

    def __init__(self, prompt: PromptSettings, media: MediaSettings, limits: MediaLimits) -> None:
        self._prompt = prompt
        self._media = media
        self._limits = limits
        self._videos = VideoReader(media.video, media.sampling, limits)

    def read(self, place: Place, options: MediaOptions, room: int) -> ReadItem:
        """`room`: tokens that the prompt has left."""
        match place.media.kind:
            case "image":
                return self._image(place.media, room)
            case "audio":
                return self._audio(place.media, room)
            case "video":
                return self._video(place, options, room)
            case "mask":
                raise AssertionError("the pipeline reads no masks, so none is admitted")

    def _image(self, media: Media, room: int) -> ReadItem:
        patches, grid = read_image(media, self._media.image, self._limits, room)
        key = _key("image", media, self._media.image)
        return ReadItem(Block("image", 0, self._rows(grid)), (_pictures("image", key, patches, grid),))

    def _audio(self, media: Media, room: int) -> ReadItem:
        made = read_audio(media, self._media.sound, self._prompt.audio_window, self._limits, room)
        sound = EncoderInput("audio", _key("audio", media, self._media.sound), {"input_features": made})
        return ReadItem(Block("audio", 0, sounds=self._sounds(sound)), (sound,))

    def _video(self, place: Place, options: MediaOptions, room: int) -> ReadItem:
        media = place.media
        made = self._videos.read(media, options.fps, room)
        key = _key("video", media, (self._media.video, self._media.sampling, options.fps))
        pictures = _pictures("video", key, made.patches, made.grid)
        block = Block("video", 0, self._rows(made.grid), self._step(made.grid_seconds))
        sound = self._sound_of(place, room - block.rows) if options.use_audio_in_video else None
        if sound is None:
            return ReadItem(block, (pictures,))
        return ReadItem(replace(block, sounds=self._sounds(sound)), (pictures, sound))

    def _sound_of(self, place: Place, room: int) -> EncoderInput | None:
        """What the caller gave as the sound of this video, else its own; None for a silent one."""
        if place.sound is not None:
            return self._audio(place.sound, room).inputs[0]
        track = None if place.media.array is not None else decode_track(place.media, self._limits.video_seconds)
        if track is None:
            return None
        samples, rate = track
        made = features(place.media, samples, rate, self._media.sound, self._prompt.audio_window, room)
        return EncoderInput("audio", _key("track", place.media, self._media.sound), {"input_features": made})

    def _sounds(self, sound: EncoderInput) -> int:
        return rows_of_frames(sound.data["input_features"].shape[1], self._prompt.audio_window)

    def _rows(self, grid: Grid) -> Grid:
        times, tall, wide = grid
        return times, tall // self._prompt.merge_size, wide // self._prompt.merge_size

    def _step(self, grid_seconds: float) -> int:
        """Rotary positions are whole numbers, and so is the way from one time of a video to the next."""
        exact = grid_seconds * self._prompt.positions_per_second
        if round(exact) < 1 or abs(exact - round(exact)) > _SLACK * exact:
            most = self._prompt.temporal_patch_size * self._prompt.positions_per_second
            found = self._prompt.temporal_patch_size / grid_seconds
            raise InvalidRequestError.of(
                _OPTIONS + _FPS_OPTION, found, f"{most:g} divided by a whole number, such as 1, 2 or {most / 4:g}"
            )
        return round(exact)


def _pictures(kind: str, key: str, patches: npt.NDArray[np.float32], grid: Grid) -> EncoderInput:
    return EncoderInput(kind, key, {"pixel_values": patches, "grid_thw": list(grid)})


def _key(kind: str, media: Media, settings: object) -> str:
    """Of what went in and how it was read: equal keys make equal rows."""
    form = (kind, media.array.shape if media.array is not None else None, media.rate, settings)
    return hashlib.blake2b(
        media.data, digest_size=24, key=hashlib.blake2b(repr(form).encode(), digest_size=32).digest()
    ).hexdigest()
