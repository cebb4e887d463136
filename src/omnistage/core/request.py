"""A request as the engine admits it: validated, complete, immutable. Nothing below the engine adds to it.

Knows nothing of HTTP, stages' models or processes. The parameters of every stage are resolved at admission
(stage defaults, overlaid by the caller, a pipeline's constraints on top), so an unseeded request already has its seed.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from omnistage.core.params import StageParams
from omnistage.core.spec import TensorSpec

MODALITIES = ("text", "audio", "image", "video", "action", "latent")
"""What a final output can be."""

READABLE = ("text", "image", "mask", "audio", "video")
"""What a model can read."""


class Media(msgspec.Struct, frozen=True, kw_only=True):
    """A picture, a mask, a sound or a video that the model is to read. Its bytes are the caller's: nothing has looked into them.

    `data` is an encoded file as it came, unless `array` says that it is raw: [height, width, 3] uint8 for an image, [height,
    width, 4] uint8 for a mask, [samples] float32 (mono) for audio, [frames, height, width, 3] uint8 for a video. A mask is a
    picture with opacity, as large as the first image of its prompt: where its last channel is 0 that image is to be drawn
    anew. `rate`, of what is raw: samples (audio) or frames (video) per second; None: the model's own. `where` is the caller's
    name for it: "messages[0].content[1].image_url.url", "multi_modal_data.image[0]".
    """

    kind: Literal["image", "mask", "audio", "video"]
    data: bytes
    array: TensorSpec | None = None
    rate: float | None = None
    where: str = ""

    def __repr__(self) -> str:
        return f"Media({self.kind}, {len(self.data)} bytes, {self.array}, {self.rate}, {self.where!r})"  # bytes fill no log


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller gave: exactly one of `text`, `messages` (chat), `token_ids`.

    `messages` are OpenAI-shaped dicts (role, content). A content is a str or, for a model that reads more than text, a list of
    parts {"type": "text", "text": str} and {"type": a kind of media, "media": index in `media`}. With `text` and
    `token_ids` the model's own placeholders stand for `media`, whose items are in the order of kind and occurrence.
    `mm_processor_kwargs` say how media are read: `use_audio_in_video` (a bool), and what the family's processor knows besides; it
    refuses all else. `additional_information` is for the family's own use.
    """

    text: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    token_ids: tuple[int, ...] | None = None
    media: tuple[Media, ...] = ()
    mm_processor_kwargs: dict[str, Any] = {}
    additional_information: dict[str, Any] = {}


class OmniRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`request_id` is the engine's own, unique; `wants` the modalities asked for; `stage_params` one entry per stage.

    The total order of requests is (priority, arrival): a smaller priority goes first, arrival is counted by the machine.
    `timeout_s` is the whole request's deadline after arrival.
    """

    request_id: str
    prompt: Prompt
    wants: tuple[str, ...]
    stage_params: dict[int, StageParams]
    priority: int = 0
    stream: bool = False
    timeout_s: float = 600.0
    group_id: str | None = None


def without_media(request: OmniRequest) -> OmniRequest:
    """The request as those have it who have no use for the bytes of its media."""
    if not request.prompt.media:
        return request
    return msgspec.structs.replace(request, prompt=msgspec.structs.replace(request.prompt, media=()))


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What one stage did for one request. Counts are exact; seconds are of produced audio."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    audio_seconds: float = 0.0
    images: int = 0


class StageTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in seconds inside one stage: waiting for a first step, from first step to end, and in forward passes.
    `prepare_s`: of the wait, in the processor (0 for inputs that were kept from an earlier request); None where there is none."""

    queued_s: float = 0.0
    prepare_s: float | None = None
    running_s: float = 0.0
    forward_s: float = 0.0
