"""From a conversation, a text or token ids with one token for each media item to the ids that the thinker reads.

The chat template is the checkpoint's; nothing is added to it, so a system turn is there only if the caller writes one. It puts one
token in the place of each item (`<|image_pad|>` between `<|vision_start|>` and `<|vision_end|>`, and so on), which is then repeated
for every row that the item takes. Where a video is read with its sound, `<|audio_start|>`, the rows of both in the order of their
times, and `<|audio_end|>` take its place. Knows no pixels and no samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media, Prompt
from omnistage.models.qwen3_omni.positions import Block
from omnistage.models.qwen3_omni.settings import PromptIds

KINDS = ("image", "audio", "video")
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Place:
    """One item in the order of the prompt. `sound`: what a caller gave as the sound of this video."""

    media: Media
    sound: Media | None = None


def parts_for_template(messages: Sequence[Mapping[str, Any]], media: Sequence[Media]) -> list[dict[str, Any]]:
    """Messages whose parts of media a template recognises by type or by key. Raises InvalidRequestError for a part that names no
    item, or an item of another kind."""
    return [_with_parts(message, f"messages[{at}]", media) for at, message in enumerate(messages)]


def _with_parts(message: Mapping[str, Any], where: str, media: Sequence[Media]) -> dict[str, Any]:
    if not isinstance(message.get("role"), str):
        raise InvalidRequestError.of(f"{where}.role", message.get("role"), "the name of a role")
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    return {**message, "content": [_part(part, f"{where}.content[{at}]", media) for at, part in enumerate(content)]}


def _part(part: Any, where: str, media: Sequence[Media]) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": str() as text}:
            return {"type": "text", "text": text}
        case {"type": "image" | "audio" | "video" as kind, "media": int() as at} if 0 <= at < len(media):
            if media[at].kind == kind:
                return {"type": kind, kind: ""}
    raise InvalidRequestError.of(where, part, "a text, or an image, an audio or a video that came with the request")


def named_in(messages: Sequence[Mapping[str, Any]], media: Sequence[Media]) -> tuple[Media, ...]:
    """The items in the order in which the conversation names them, then those that it does not."""
    contents = (message["content"] for message in messages if isinstance(message.get("content"), list))
    named = [part["media"] for content in contents for part in content if part["type"] in KINDS]
    rest = [at for at in range(len(media)) if at not in named]
    return tuple(media[at] for at in [*named, *rest])


def places(
    ids: Sequence[int], media: Sequence[Media], tokens: PromptIds, prompt: Prompt, *, with_sound: bool
) -> list[Place]:
    """The items in the order of their tokens in `ids`. `with_sound`: videos are read with their sound, which may be sounds beyond
    those that have tokens of their own, one for each video. Raises InvalidRequestError where tokens and items do not match."""
    kind_of = _kinds(tokens)
    wanted = [kind_of[token] for token in ids if token in kind_of]
    given = {kind: [item for item in media if item.kind == kind] for kind in KINDS}
    beyond = len(given["audio"]) - wanted.count("audio")
    sounds: list[Media] = []
    if with_sound and beyond > 0 and beyond == wanted.count("video"):
        # Of a conversation those that no part names come last, of a text those of videos come first.
        cut = wanted.count("audio") if prompt.messages is not None else 0
        sounds = given["audio"][cut : cut + beyond]
        given["audio"] = given["audio"][:cut] + given["audio"][cut + beyond :]
    for kind in KINDS:
        if wanted.count(kind) != len(given[kind]):
            raise _mismatch(prompt, kind, wanted.count(kind), given[kind])
    items = {kind: iter(given[kind]) for kind in KINDS}
    heard = iter(sounds)
    return [Place(next(items[kind]), next(heard, None) if kind == "video" else None) for kind in wanted]


def _mismatch(prompt: Prompt, kind: str, count: int, given: Sequence[Media]) -> InvalidRequestError:
    field = "messages" if prompt.messages is not None else "prompt"
    return InvalidRequestError(
        f"{field}: {count} tokens for items of kind {kind}, and {len(given)} such items"
        f" ({', '.join(item.where for item in given[:3]) or 'none'}); accepted: one token for each item",
        field=field,
    )


@dataclass(frozen=True, slots=True)
class Expanded:
    """The prompt in full: ids [L], a block for each item in order, and which ids are rows of media [L]."""

    ids: Ints
    blocks: tuple[Block, ...]
    is_media: npt.NDArray[np.bool_]


def expand(ids: Sequence[int], items: Sequence[Block], tokens: PromptIds) -> Expanded:
    """`items` are the blocks of the tokens of media in `ids`, in order, wherever they start."""
    kind_of = _kinds(tokens)
    made: list[int] = []
    blocks = []
    waiting = iter(items)
    for token in ids:
        if token not in kind_of:
            made.append(token)
            continue
        item = next(waiting)
        begin = tokens.audio_start if item.kind == "audio" else tokens.vision_start
        is_marked = bool(made) and made[-1] == begin
        made += [tokens.audio_start] * item.is_spoken
        blocks.append(replace(item, start=len(made), is_marked=is_marked))
        made += np.where(item.is_sound(), tokens.audio, token).tolist()
        made += [tokens.audio_end] * item.is_spoken
    full = np.array(made, np.int32)
    return Expanded(full, tuple(blocks), np.isin(full, list(kind_of)))


def _kinds(tokens: PromptIds) -> dict[int, str]:
    return {tokens.image: "image", tokens.audio: "audio", tokens.video: "video"}


def user_turns(ids: Ints, tokens: PromptIds) -> Iterator[tuple[int, int]]:
    """Spans [start, end) of what users said, each with its first and last marks."""
    begins = np.flatnonzero(ids == tokens.im_start).tolist()
    for start, end in pairwise([*begins, len(ids)]):
        if start + 1 < len(ids) and ids[start + 1] == tokens.user:
            yield start, end


def runs(chosen: npt.NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
    """Where `chosen` [n] is true, as spans [start, end), in order."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]])))
    return tuple((int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True))
