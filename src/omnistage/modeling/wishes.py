"""What every model that draws reads of a request: the words, the parameters, the sides of a picture. Knows no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omnistage.core.errors import InvalidRequestError
from omnistage.core.params import DiffusionParams
from omnistage.core.request import Media, OmniRequest, Prompt


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks to see, with the pictures that it is to be made of and its mask; `field` is the caller's name for the
    text."""

    text: str
    field: str
    media: tuple[Media, ...] = ()


def wish_of(prompt: Prompt) -> Wish:
    """Of messages the last of the user. Raises InvalidRequestError where nobody asks for anything."""
    if prompt.messages is None:
        if prompt.text is None or not prompt.text.strip():
            raise InvalidRequestError.of("prompt", prompt.text, "a text that is not blank, or messages")
        return Wish(prompt.text, "prompt", prompt.media)
    asked = [at for at, message in enumerate(prompt.messages) if message.get("role") == "user"]
    if not asked:
        raise InvalidRequestError.of("messages", "no user turn", "at least one, which says what to draw")
    where = f"messages[{asked[-1]}].content"
    content = prompt.messages[asked[-1]].get("content")
    parts: list[dict[str, Any]] = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part["text"] for part in parts if part.get("type") == "text" and part.get("text")]
    if not "".join(texts).strip():
        raise InvalidRequestError.of(where, content, "a text that is not blank")
    return Wish("\n".join(texts), where, tuple(prompt.media[part["media"]] for part in parts if "media" in part))


def params_of(request: OmniRequest, stage_id: int, defaults: DiffusionParams) -> DiffusionParams:
    found = request.stage_params.get(stage_id, defaults)
    assert isinstance(found, DiffusionParams), "admission gives a stage the parameters of its kind"
    return found


def checked_side(name: str, side: int, multiple: int) -> int:
    """`side`, which `name` calls. Raises InvalidRequestError, with the nearest that are legal, unless it is a multiple."""
    if side % multiple:
        near = " or ".join(map(str, _nearest(side, multiple)))
        raise InvalidRequestError.of(name, side, f"a multiple of {multiple}, the nearest are {near}")
    return side


def _nearest(side: int, multiple: int) -> Iterator[int]:
    """The one below, if it is a size, and the one above."""
    below = side // multiple * multiple
    if below:
        yield below
    yield below + multiple
