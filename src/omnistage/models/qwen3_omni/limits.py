"""How much a caller's media may be, asked before anything is decoded, and the words in which it is refused."""

from __future__ import annotations

from dataclasses import dataclass

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.modeling.media import check_file
from omnistage.models.qwen3_omni.whole import stated_nbytes


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Of one item. Bytes are those of the file, pixels those of a picture or frame before resizing, frames all that a video has.
    `video_work` bounds the pixels of all frames together: what decoding them takes, a minute or less in one thread."""

    image_nbytes: int = 64 * 2**20
    image_pixels: int = 2**26
    audio_nbytes: int = 256 * 2**20
    audio_seconds: float = 3600.0
    video_nbytes: int = 512 * 2**20
    video_pixels: int = 2**25
    video_seconds: float = 3600.0
    video_frames: int = 2**18
    video_work: int = 2**34

    def nbytes(self, kind: str) -> int:
        return {"image": self.image_nbytes, "audio": self.audio_nbytes, "video": self.video_nbytes}[kind]


def check_nbytes(media: Media, limits: MediaLimits) -> None:
    """A file has some bytes, and not too many. Raw samples and pixels are bounded by their counts."""
    check_file(media, limits.nbytes(media.kind))


def check_rows(media: Media, rows: int, room: int) -> None:
    """`rows` of the prompt that the item takes; `room`: those that the prompt still has."""
    if rows > room:
        raise InvalidRequestError.of(
            media.where, f"{rows} tokens", f"at most {room}, what the prompt has left (max_model_len)"
        )


def check_end(media: Media) -> None:
    """A file has its end, as far as it says where that is. Writers differ by the byte that makes a length even."""
    stated = stated_nbytes(media.data)
    if stated is not None and stated > len(media.data) + 1:
        raise InvalidRequestError.of(media.where, f"{len(media.data)} bytes of a file of {stated}", "a whole file")
