"""Pictures of the engine in the shape of OpenAI's images endpoints, whole and streamed, with holes for the files (serve.coding).

A stream has an event for every partial picture and one for every picture, which is `completed`; the last of these has the usage,
the others, of a request for several pictures, have none. `index` says which of the pictures it is. Times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omnistage.core.request import Usage
from omnistage.serve.coding import hole, url_head
from omnistage.serve.render.sse import named_event


@dataclass(frozen=True, slots=True)
class ImageFrame:
    """What all events of one reply share. `kind`: image_generation or image_edit."""

    kind: str
    created: int
    output_format: str
    background: str

    @property
    def shared(self) -> dict[str, Any]:
        return {"background": self.background, "output_format": self.output_format, "quality": "auto"}


@dataclass(frozen=True, slots=True)
class ShownPicture:
    """Which of a request's pictures it is, and its `size` as WIDTHxHEIGHT."""

    size: str
    index: int = 0


def size_of(shape: Sequence[int]) -> str:
    """Of an array [height, width, channels]."""
    return f"{shape[1]}x{shape[0]}"


def images_object(
    frame: ImageFrame, pictures: Sequence[ShownPicture], usage: Usage, *, url: bool = False
) -> dict[str, Any]:
    """The whole reply; with `url` pictures come as data: URLs."""
    data = {"url": hole(url_head(frame.output_format))} if url else {"b64_json": hole()}
    return {
        "created": frame.created,
        "data": [data for _ in pictures],
        **frame.shared,
        **({"size": pictures[0].size} if pictures else {}),
        "usage": usage_object(usage),
    }


def partial_event(frame: ImageFrame, picture: ShownPicture, partial: int) -> bytes:
    """A picture on its way; `partial` counts those of one picture."""
    return _event(frame, "partial_image", picture, {"partial_image_index": partial})


def completed_event(frame: ImageFrame, picture: ShownPicture, usage: Usage | None) -> bytes:
    """A whole picture."""
    return _event(frame, "completed", picture, {"usage": None if usage is None else usage_object(usage)})


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"text_tokens": usage.prompt_tokens, "image_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _event(frame: ImageFrame, what: str, picture: ShownPicture, more: dict[str, Any]) -> bytes:
    return named_event(
        {
            "type": f"{frame.kind}.{what}",
            "b64_json": hole(),
            "created_at": frame.created,
            "size": picture.size,
            "index": picture.index,
            **frame.shared,
            **more,
        }
    )
