"""What transformers makes of a prompt: thinker ids, codes and samples, from the inputs that this package's processor prepared.

How prompts are prepared is compared elsewhere; here both sides read the same ids, pixels and features, so that what differs is the
model alone. `talker_tokens` counts frames: transformers throws the last drawn code away, so it is asked for one more. `spoken` is
how many generated tokens of the thinker are spoken: transformers never speaks the last one, so it generates one more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omnistage.modeling.protocols import MediaInput, ProcessedPrompt


@dataclass(frozen=True)
class Spoken:
    """`token_ids` of the thinker, `codes` [frames, groups], `samples` of the one-shot decode of all frames."""

    token_ids: list[int]
    codes: np.ndarray[Any, Any]
    samples: np.ndarray[Any, Any]


def load_reference(folder: Path) -> Any:
    from transformers import Qwen3OmniMoeForConditionalGeneration

    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder).eval()
    model.talker.config.audio_config = (
        model.thinker.config.audio_config
    )  # its talker asks for what only its thinker has
    return model


def inputs_of(prompt: ProcessedPrompt, *, grid_seconds: float = 1.0, audio_in_video: bool = False) -> dict[str, Any]:
    """The arguments of `generate` for one prompt. `grid_seconds`: what two frames of its video last, at the
    pace at which they are asked for."""
    named: dict[str, Any] = {"input_ids": torch.tensor([prompt.token_ids])}
    named["attention_mask"] = torch.ones_like(named["input_ids"])
    for kind, pixels, grid in (
        ("image", "pixel_values", "image_grid_thw"),
        ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        media = [one for one in prompt.media if one.kind == kind]
        if media:
            named[pixels] = torch.cat([torch.from_numpy(np.array(one.data["pixel_values"])) for one in media])
            named[grid] = torch.tensor([list(one.data["grid_thw"]) for one in media])
            if kind == "video":
                named["video_second_per_grid"] = torch.tensor([grid_seconds] * len(media))
    sounds = [one for one in prompt.media if one.kind == "audio"]
    if sounds:
        named |= _features(sounds)
    if audio_in_video:
        named["use_audio_in_video"] = True
    return named


def _features(sounds: Sequence[MediaInput]) -> dict[str, torch.Tensor]:
    """Padded to the longest, as the processor of transformers gives them."""
    arrays = [np.array(one.data["input_features"]) for one in sounds]
    longest = max(array.shape[1] for array in arrays)
    features = torch.zeros(len(arrays), arrays[0].shape[0], longest)
    mask = torch.zeros(len(arrays), longest, dtype=torch.long)
    for index, array in enumerate(arrays):
        features[index, :, : array.shape[1]] = torch.from_numpy(array)
        mask[index, : array.shape[1]] = 1
    return {"input_features": features, "feature_attention_mask": mask}


def speak(
    model: Any,
    inputs: dict[str, Any],
    *,
    text_tokens: int,
    frames: int,
    speaker: str = "ethan",
    eos_token_id: int | None = None,
) -> Spoken:
    """Greedy. Without an `eos_token_id` exactly `text_tokens` tokens are generated and all of them spoken."""
    codes: list[torch.Tensor] = []
    decode = model.code2wav.chunked_decode

    def remember(found: torch.Tensor, **_named: Any) -> torch.Tensor:
        codes.append(found)
        whole: torch.Tensor = model.code2wav(found)
        return whole

    model.code2wav.chunked_decode = remember
    asked = text_tokens + (eos_token_id is None)
    try:
        ids, samples = model.generate(
            **inputs,
            speaker=speaker,
            return_audio=True,
            thinker_max_new_tokens=asked,
            thinker_do_sample=False,
            thinker_eos_token_id=-1 if eos_token_id is None else eos_token_id,
            talker_do_sample=False,
            talker_max_new_tokens=frames + 1,
        )
    finally:
        model.code2wav.chunked_decode = decode
    generated = ids[0, inputs["input_ids"].shape[1] :].tolist()
    return Spoken(generated[:text_tokens], codes[0][0].T.numpy(), samples.flatten().numpy())
