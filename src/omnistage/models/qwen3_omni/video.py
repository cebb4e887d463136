"""A video, encoded or raw, as the vision encoder reads it: frames at a steady pace, each resized as pictures are.

A file is demuxed once to count its frames, then decoded up to the last frame that is wanted; only wanted frames are converted, and
kept in their final size. Frames of a video with known times are read `fps` times a second. Those of a raw one without are all read,
as if `fps` (1 where nobody says) had passed between them. Limits are asked before anything is decoded. Knows no prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.modeling.media import raw
from omnistage.modeling.patches import (
    Frames,
    Grid,
    Pixels,
    grid_of,
    is_too_narrow,
    patchify,
    resize_frame,
    resized,
    rows_of,
    video_colours,
)
from omnistage.models.qwen3_omni.containers import VIDEO_CONTAINERS, opened, video_track
from omnistage.models.qwen3_omni.limits import MediaLimits, check_nbytes, check_rows
from omnistage.models.qwen3_omni.settings import VideoSampling

_UNTIMED_FPS = 1.0
_HIGHEST_FPS = 1000.0


@dataclass(frozen=True, slots=True)
class ReadVideo:
    """Patches [patches, values], their grid, and how many seconds lie between two of its times."""

    patches: npt.NDArray[np.float32]
    grid: Grid
    grid_seconds: float


@dataclass(frozen=True, slots=True)
class _Facts:
    """Of a whole video: frames, their sides in pixels, frames per second."""

    frames: int
    height: int
    width: int
    rate: float


@dataclass(frozen=True, slots=True)
class VideoReader:
    """See the module."""

    pixels: Pixels
    sampling: VideoSampling
    limits: MediaLimits

    def read(self, media: Media, fps: float | None, room: int) -> ReadVideo:
        """`fps`: what the caller asks for. `room`: rows of the prompt that are left. Raises InvalidRequestError."""
        check_nbytes(media, self.limits)
        if media.array is not None:
            pace = fps or (self.sampling.fps if media.rate else _UNTIMED_FPS)
            frames = self._raw(media, pace, room)
        else:
            pace = fps or self.sampling.fps
            frames = self._decoded(media, pace, room)
        depth, size = self.pixels.temporal_patch_size, self.pixels.patch_size
        grid = (-(-len(frames) // depth), frames.shape[1] // size, frames.shape[2] // size)
        return ReadVideo(patchify(frames, video_colours(self.pixels), self.pixels), grid, depth / pace)

    def _raw(self, media: Media, pace: float, room: int) -> Frames:
        whole = raw(media, np.uint8, "frames, height, width, 3")
        facts = _Facts(whole.shape[0], whole.shape[1], whole.shape[2], media.rate or pace)
        self._check(media, facts)
        wanted = self._wanted(facts, pace) if media.rate else range(len(whole))
        sides = self._sides(media, len(wanted), facts, room)
        return np.stack([resize_frame(whole[index], *sides) for index in wanted])

    def _decoded(self, media: Media, pace: float, room: int) -> Frames:
        facts = self._look(media)
        self._check(media, facts)
        wanted = self._wanted(facts, pace)
        frames, seen = self._decode(media, wanted, self._sides(media, len(wanted), facts, room))
        if len(frames) < len(wanted) and seen:
            # Not every packet makes a frame: what was seen is what there is.
            wanted = self._wanted(replace(facts, frames=seen), pace)
            frames, seen = self._decode(media, wanted, self._sides(media, len(wanted), facts, room))
        if not seen:
            raise InvalidRequestError.of(
                media.where, "a video without a frame", f"a video: {', '.join(VIDEO_CONTAINERS)}"
            )
        return np.stack(frames)

    def _look(self, media: Media) -> _Facts:
        """Counts frames without decoding them; what the header says of their size is asked again of every frame."""
        with opened(media, VIDEO_CONTAINERS) as container:
            track = video_track(container, media)
            height, width = track.height, track.width
            self._check(media, _Facts(1, height, width, 1.0))
            count = 0
            for packet in container.demux(track):
                count += packet.size > 0 and not packet.is_discard
                if count > self.limits.video_frames:
                    self._check(media, _Facts(count, height, width, _HIGHEST_FPS))
            rate = track.average_rate or track.base_rate
            return _Facts(count, height, width, float(rate) if rate else 0.0)

    def _decode(self, media: Media, wanted: Sequence[int], sides: tuple[int, int]) -> tuple[list[Frames], int]:
        """The frames that are wanted, by their numbers in the order of time, upright, and how many were seen. `sides` are those of
        a frame as it is stored; a phone stores its pictures lying, and says so."""
        chosen, last = frozenset(wanted), wanted[-1]
        frames: list[Frames] = []
        seen = turns = 0
        with opened(media, VIDEO_CONTAINERS) as container:
            track = video_track(container, media)
            track.codec_context.options = {"max_pixels": str(self.limits.video_pixels)}
            for frame in container.decode(track):
                turns = round(frame.rotation / 90) % 4 if not seen else turns
                if seen in chosen:
                    upright = np.rot90(np.asarray(frame.to_ndarray(format="rgb24"), np.uint8), turns)
                    frames.append(resize_frame(upright, *(sides[::-1] if turns % 2 else sides)))
                seen += 1
                if seen > last:
                    break
        return frames, seen

    def _check(self, media: Media, facts: _Facts) -> None:
        limits = self.limits
        if not 1 <= facts.frames <= limits.video_frames:
            raise InvalidRequestError.of(media.where, f"{facts.frames} frames", f"1 to {limits.video_frames} frames")
        if not 0 < facts.rate <= _HIGHEST_FPS:
            accepted = f"above 0, at most {_HIGHEST_FPS:g}"
            raise InvalidRequestError.of(media.where, f"{facts.rate:g} frames per second", accepted)
        if facts.frames > limits.video_seconds * facts.rate:
            found = f"{facts.frames / facts.rate:.1f} s"
            raise InvalidRequestError.of(media.where, found, f"at most {limits.video_seconds:g} s")
        shown = f"frames of {facts.width}x{facts.height} pixels"
        if not 0 < facts.height * facts.width <= limits.video_pixels:
            raise InvalidRequestError.of(media.where, shown, f"1 to {limits.video_pixels} pixels")
        if is_too_narrow(facts.height, facts.width):
            raise InvalidRequestError.of(media.where, shown, "a longer side of at most 200 times the shorter one")
        if facts.frames * facts.height * facts.width > limits.video_work:
            accepted = f"at most {limits.video_work} pixels in all of them"
            raise InvalidRequestError.of(media.where, f"{facts.frames} {shown}", accepted)

    def _wanted(self, facts: _Facts, pace: float) -> Sequence[int]:
        return sample(facts.frames, facts.rate, pace, self.sampling, self.pixels.temporal_patch_size)

    def _sides(self, media: Media, count: int, facts: _Facts, room: int) -> tuple[int, int]:
        """Of a frame after resizing, when `count` of them fit into the prompt."""
        check_rows(media, rows_of(grid_of(count, facts.height, facts.width, self.pixels), self.pixels), room)
        return resized(facts.height, facts.width, self.pixels)


def sample(total: int, rate: float, fps: float, sampling: VideoSampling, depth: int) -> Sequence[int]:
    """Which of `total` frames at `rate` a second are read to have `fps` of them: a multiple of `depth`, in bounds, evenly spread
    from the first on. All of them where there are fewer than `depth`."""
    most = min(sampling.most, total) // depth * depth
    count = math.floor(min(max(total / rate * fps, sampling.least), most) / depth) * depth
    if not count:
        return range(total)
    # In float32, as the reference does: another rounding picks other frames.
    places: list[int] = (np.arange(count) * (total / count)).astype(np.float32).astype(int).tolist()
    return places
