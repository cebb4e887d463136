"""What travels between the stages, and what becomes of it there.

    thinker --for_talker--> new tokens, rows of media, what the prompt leaves --talker_bridge--> the talker's prompt, then sides
    talker --for_code2wav--> frames of codes --code2wav_bridge--> the same

The first token of the answer belongs to the talker's prompt. Every later one is the side of one step, then comes the end of the
text, and what follows is padded. A token that ends the answer is not spoken; at the length, all are. An answer without a token to
speak makes no prompt, and no sound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from omnistage.core.errors import StageFailedError
from omnistage.core.params import GenerationParams
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.request import OmniRequest
from omnistage.core.spec import TensorSpec
from omnistage.modeling.protocols import StageInput
from omnistage.models.qwen3_omni.handoff import TalkerPrompt

CODE2WAV = 2
"""The stage whose parameters name the voice. Its pipeline has that number for it."""

FRAMES = "frames"
"""The tensor of codec frames: int32 [frames, groups]."""

END_OF_TEXT, PAD = -1, -2
"""Sides of the talker that are no tokens."""

PROMPT_ROWS = 256
"""Rows of the user's turns in one input: so many are made at once, between two steps of the talker."""

MEDIA = "media"
"""Rows [m, thinker's hidden] of the accepted layer, at the places of media."""

_HIDDEN = "hidden_"


def for_talker(capture: MultimodalPayload, request: OmniRequest) -> MultimodalPayload | None:
    """New tokens of the first choice that are spoken, whether it has ended, rows of media, and what the prompt leaves."""
    tensors = {name: tensor for name, tensor in capture.tensors.items() if not name.startswith(_HIDDEN)}
    rows = [tensor for name, tensor in capture.tensors.items() if name.startswith(_HIDDEN)]
    if rows and rows[0].spec.shape[0]:
        tensors[MEDIA] = rows[0]
    metadata: dict[str, Any] = {}
    for choice in capture.metadata.get("choices", ()):
        if choice["index"] == 0:
            metadata |= _said(choice)
    if "prompt" in capture.metadata:
        metadata |= {"prompt": capture.metadata["prompt"], "voice": _voice(request)}
    return MultimodalPayload(tensors, metadata) if tensors or metadata else None


def _said(choice: Mapping[str, Any]) -> dict[str, Any]:
    tokens = list(choice["token_ids"])
    if choice["finish_reason"] is None:
        return {"token_ids": tokens}
    is_end = isinstance(choice.get("stop_reason"), int)
    return {"token_ids": tokens[:-1] if is_end else tokens, "ended": True}


def _voice(request: OmniRequest) -> str | None:
    params = request.stage_params.get(CODE2WAV)
    return params.voice if isinstance(params, GenerationParams) else None


@dataclass(frozen=True, slots=True)
class Heard:
    """What the talker's stage has been told of a request and not used yet. `media` are parts of the rows, in order; `tokens` of the
    text wait for the rows of media that stand before them. `begun`: the prompt has been made."""

    prompt: TalkerPrompt | None = None
    voice: str | None = None
    media: tuple[Tensor, ...] = ()
    tokens: tuple[int, ...] = ()
    ended: bool = False
    begun: bool = False


def talker_bridge(
    state: Heard | None, source: int, seq: int, payload: MultimodalPayload | None, last: bool
) -> tuple[Heard, list[StageInput]]:
    """The prompt as soon as its rows and the first token are there, closed; then sides. Raises StageFailedError where the thinker
    ends before it has sent what it announced."""
    heard = state or Heard()
    if payload is not None:
        heard = _heard(heard, payload)
    inputs: list[StageInput] = []
    if not heard.begun and heard.tokens and _is_whole(heard):
        inputs += [*_prompt_of(heard), StageInput({"close": True})]
        heard = Heard(tokens=heard.tokens[1:], ended=heard.ended, begun=True)
    if heard.begun and (heard.tokens or heard.ended):
        inputs.append(StageInput({"sides": [*heard.tokens, *[END_OF_TEXT] * heard.ended]}))
        heard = Heard(begun=True)
    if last and not heard.begun and heard.tokens:
        raise StageFailedError("the thinker ended before it had sent the rows of media that its prompt has")
    return heard, inputs


def _heard(heard: Heard, payload: MultimodalPayload) -> Heard:
    told, own = payload.metadata, payload.copied()
    if "prompt" in told:
        arrays = {name: own.numpy(name) for name in own.tensors if name != MEDIA}
        heard = replace(heard, prompt=TalkerPrompt.of({**told["prompt"], **arrays}), voice=told["voice"])
    if MEDIA in own.tensors:
        rows = own.tensors[MEDIA]
        assert isinstance(rows, Tensor)  # what was copied lies in memory
        heard = replace(heard, media=(*heard.media, rows))
    tokens = (*heard.tokens, *told.get("token_ids", ()))
    return replace(heard, tokens=tokens, ended=heard.ended or told.get("ended", False))


def _is_whole(heard: Heard) -> bool:
    sent = sum(part.spec.shape[0] for part in heard.media)
    return heard.prompt is not None and sent == len(heard.prompt.media_rows)


def _prompt_of(heard: Heard) -> Iterator[StageInput]:
    """The user's turns in parts, then the rows that open the answer."""
    prompt = heard.prompt
    assert prompt is not None
    count, places = len(prompt.user_ids), prompt.positions.shape[1]
    # Without positions of its own a prompt stands where it would with these, and a step costs less.
    is_plain = prompt.next_position == places and bool((prompt.positions == np.arange(places)).all())

    def part(written: Mapping[str, Any], start: int, end: int) -> StageInput:
        if is_plain:
            return StageInput({"prompt": written})
        own = prompt.positions[:, start:end]
        return StageInput({"prompt": written, "positions": own, "next_position": prompt.next_position})

    for start in range(0, count, PROMPT_ROWS):
        end = min(count, start + PROMPT_ROWS)
        first, last = (int(place) for place in np.searchsorted(prompt.media_rows, [start, end]))
        written = {
            "user_ids": prompt.user_ids[start:end],
            "media_rows": prompt.media_rows[first:last] - start,
            "media": _cut(heard.media, first, last),
        }
        yield part(written, start, end)
    yield part({"first": heard.tokens[0], "voice": heard.voice}, count, places)


def _cut(parts: Sequence[Tensor], start: int, end: int) -> list[Tensor]:
    """The rows [start, end) of `parts`, which lie one behind another."""
    found: list[Tensor] = []
    at = 0
    for rows in parts:
        spec, buffer = rows.spec, rows.buffer
        assert buffer is not None
        first, last = max(0, start - at), min(spec.shape[0], end - at)
        if first < last:
            size = spec.nbytes // spec.shape[0]
            shape = (last - first, *spec.shape[1:])
            found.append(Tensor(TensorSpec(spec.dtype, shape), buffer[first * size : last * size]))
        at += spec.shape[0]
    return found


def for_code2wav(capture: MultimodalPayload, request: OmniRequest) -> MultimodalPayload | None:
    """The frames that were made."""
    frames = capture.tensors.get(FRAMES)
    return None if frames is None else MultimodalPayload({FRAMES: frames})


def code2wav_bridge(
    state: None, source: int, seq: int, payload: MultimodalPayload | None, last: bool
) -> tuple[None, list[StageInput]]:
    """One input per payload with frames. Which codes there are is the model's to say."""
    if payload is None:
        return None, []
    if FRAMES not in payload.tensors:
        raise StageFailedError(f"item {seq} of stage {source} has no tensor {FRAMES}; it has {sorted(payload.tensors)}")
    frames = np.array(payload.numpy(FRAMES), np.int64)
    return None, [StageInput({FRAMES: frames}, frames.nbytes)] if len(frames) else []
