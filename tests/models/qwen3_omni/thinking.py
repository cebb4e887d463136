"""Prompts with random pictures, videos and sounds, an engine around the tiny thinker, and what transformers makes of the same."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omnistage.core.request import OmniRequest, Prompt
from omnistage.modeling.protocols import MediaInput, ProcessedPrompt
from omnistage.modeling.tensors import to_torch
from omnistage.models.qwen3_omni.thinker import load
from omnistage.stages.ar.build import ar_engine
from omnistage.stages.ar.engine import ARStageEngine
from tests.models.qwen3_omni.reference import inputs_of
from tests.tiny.engines import Heard, stage_config

TEXT = range(60, 240)
"""Tokens that are words."""
PATCH_VALUES = 3 * 2 * 16 * 16
ACCEPT = 3
"""Whose input is handed on of the tiny checkpoint: behind its two layers with additions."""


def picture(random: np.random.Generator, height: int = 4, width: int = 6, frames: int = 1) -> MediaInput:
    """A picture of height x width patches, or a video; not placed yet."""
    grid = [frames, height, width]
    pixels = random.standard_normal((frames * height * width, PATCH_VALUES)).astype(np.float32)
    data: dict[str, Any] = {"pixel_values": pixels, "grid_thw": grid}
    if frames > 1:
        data["seconds_per_grid"] = 1.0
    tokens = frames * height * width // 4
    return MediaInput("video" if frames > 1 else "image", str(random.integers(2**62)), (), tokens, data)


def sound(random: np.random.Generator, frames: int) -> MediaInput:
    """Features of so many frames of 10 ms."""
    features = random.standard_normal((128, frames)).astype(np.float32)
    tokens = sum(((part - 1) // 2 // 2) // 2 + 1 for part in [*[100] * (frames // 100), frames % 100] if part)
    return MediaInput("audio", str(random.integers(2**62)), (), tokens, {"input_features": features})


def words(random: np.random.Generator, count: int) -> list[int]:
    return [int(token) for token in random.choice(list(TEXT), count)]


def prompt_of(reference: Any, *parts: list[int] | MediaInput) -> ProcessedPrompt:
    """Text and media, these between their marks; positions are transformers'."""
    ids: list[int] = []
    media: list[MediaInput] = []
    config = reference.thinker.config
    marks = {
        "image": (config.vision_start_token_id, config.image_token_id, config.vision_end_token_id),
        "video": (config.vision_start_token_id, config.video_token_id, config.vision_end_token_id),
        "audio": (config.audio_start_token_id, config.audio_token_id, config.audio_end_token_id),
    }
    for part in parts:
        if isinstance(part, list):
            ids += part
            continue
        begin, place, end = marks[part.kind]
        media.append(dataclasses.replace(part, spans=((len(ids) + 1, len(ids) + 1 + part.tokens),)))
        ids += [begin, *[place] * part.tokens, end]
    spans = tuple(span for one in media for span in one.spans)
    prompt = ProcessedPrompt(tuple(ids), media=tuple(media), outputs_at=spans)
    if not media:
        return prompt
    positions = positions_of(reference, prompt)
    return dataclasses.replace(prompt, positions=positions, next_position=int(positions.max()) + 1)


def positions_of(reference: Any, prompt: ProcessedPrompt) -> np.ndarray[Any, Any]:
    """[3, L]"""
    named = inputs_of(prompt)
    lengths = named["feature_attention_mask"].sum(-1) if "feature_attention_mask" in named else None
    seconds = named.get("video_second_per_grid")
    found, _ = reference.thinker.get_rope_index(
        named["input_ids"],
        named.get("image_grid_thw"),
        named.get("video_grid_thw"),
        named["attention_mask"],
        False,
        lengths,
        seconds,
    )
    positions: np.ndarray[Any, Any] = found[:, 0].numpy().astype(np.int32)
    return positions


@dataclass
class Thought:
    """`token_ids` made greedily, `hidden` [rows, hidden] of the positions `outputs_at`."""

    token_ids: list[int]
    hidden: torch.Tensor


@torch.inference_mode()
def think(reference: Any, prompt: ProcessedPrompt, count: int) -> Thought:
    """What transformers makes of it: the whole text is computed for every token."""
    unpaced = [dataclasses.replace(one, data={"seconds_per_grid": 0.0, **one.data}) for one in prompt.media]
    named = inputs_of(dataclasses.replace(prompt, media=tuple(unpaced)))
    named.pop("video_second_per_grid", None)  # positions say more than a pace
    start = len(prompt.token_ids)
    positions = prompt.positions if prompt.positions is not None else np.arange(start)[None].repeat(3, axis=0)
    behind = start if prompt.next_position is None else prompt.next_position
    ids = list(prompt.token_ids)
    hidden = torch.empty(0)
    for step in range(count):
        more = np.arange(behind, behind + step)[None].repeat(3, axis=0)
        named["input_ids"] = torch.tensor([ids])
        named["attention_mask"] = torch.ones_like(named["input_ids"])
        named["position_ids"] = torch.from_numpy(np.concatenate([positions, more], axis=1)).long()[:, None]
        made = reference.thinker(**named, use_cache=False, output_hidden_states=step == 0)
        if step == 0:
            accept = reference.config.talker_config.accept_hidden_layer
            rows = [row for first, end in prompt.outputs_at or () for row in range(first, end)]
            hidden = made.hidden_states[accept][0, rows]
        ids.append(int(made.logits[0, -1].argmax()))
    return Thought(ids[start:], hidden)


@dataclass
class Prepared:
    """A processor that knows its prompts by their texts."""

    prompts: dict[str, ProcessedPrompt] = field(default_factory=dict)
    tokenizer: Any = None
    eos_token_ids: frozenset[int] = frozenset()
    _names: Any = field(default_factory=itertools.count)

    def hold(self, prompt: ProcessedPrompt) -> Prompt:
        name = f"prompt {next(self._names)}"
        self.prompts[name] = prompt
        return Prompt(text=name)

    def __call__(self, request: OmniRequest) -> ProcessedPrompt:
        return self.prompts[request.prompt.text or ""]


class Spelling:
    """A tokenizer that spells a token as a character."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(0x4E00 + token) for token in ids)


def thinker_engine(folder: Path, **changes: Any) -> tuple[ARStageEngine, Prepared]:
    named: Mapping[str, Any] = {"max_model_len": 1024, "max_num_batched_tokens": 512, **changes}
    config = stage_config(folder, loader="omnistage.models.qwen3_omni.thinker:load", **named)
    processor = Prepared(tokenizer=Spelling())
    return ar_engine(config, load(config), processor), processor


def hidden_of(heard: Heard, layer: int) -> torch.Tensor:
    """All captured rows of an answer, in their order."""
    captures = [output.capture for output in heard.outputs if output.capture is not None]
    name = f"hidden_{layer}"
    return torch.cat([to_torch(capture.tensors[name]) for capture in captures if name in capture.tensors])


def expect_equal_thoughts(heard: Heard, expected: Thought) -> None:
    assert heard.tokens() == expected.token_ids
    if len(expected.hidden):
        assert torch.allclose(hidden_of(heard, ACCEPT), expected.hidden, atol=2e-4)
