"""The talker's stage alone: prompts and text as the thinker's stage would send them, computed by transformers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omnistage.config.stage import ARStageConfig
from omnistage.core.params import GenerationParams, SamplingParams
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.request import OmniRequest, Prompt
from omnistage.modeling.protocols import MediaInput, ProcessedPrompt
from omnistage.models.qwen3_omni.bridges import CODE2WAV, MEDIA
from omnistage.models.qwen3_omni.handoff import ASSISTANT_ROWS, NEXT_POSITION, TalkerPrompt
from omnistage.stages.ar.build import build_ar_engine
from omnistage.stages.ar.engine import ARStageEngine
from omnistage.stages.base import StageRequest
from tests.models.qwen3_omni.reference import Spoken, inputs_of, speak
from tests.tiny.engines import Heard
from tests.tiny.qwen3_omni import train_tokenizer

TALKER = 1
GREEDY = SamplingParams(temperature=0.0, repetition_penalty=1.05, max_tokens=24)
SAMPLED = SamplingParams(temperature=0.9, top_k=50, repetition_penalty=1.05, max_tokens=24, seed=7, ignore_eos=True)
QUESTION = "<|im_start|>system\nYou hear.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
_KINDS = {"image": "<|vision_start|>{}<|vision_end|>", "audio": "<|audio_start|>{}<|audio_end|>"}
_TOKENS = {"image": 6, "audio": 26}
_PLACES = {"image": "<|image_pad|>", "audio": "<|audio_pad|>"}

tokenizer = functools.cache(train_tokenizer)


def prompt_of(text: str, *kinds: str) -> ProcessedPrompt:
    """A question about media of `kinds`, which lie before `text`: pictures of 6 rows, sounds of 2 s."""
    spelt = "".join(_KINDS[kind].format(_PLACES[kind] * _TOKENS[kind]) for kind in kinds)
    ids = tokenizer().encode(QUESTION.format(spelt + text), add_special_tokens=False).ids
    chance = np.random.default_rng(len(text))
    media = []
    for kind in kinds:
        data: dict[str, Any] = {"input_features": chance.standard_normal((128, 200)).astype(np.float32)}
        if kind == "image":
            pixels = chance.standard_normal((24, 1536)).astype(np.float32)
            data = {"pixel_values": pixels, "grid_thw": [1, 4, 6]}
        media.append(MediaInput(kind, kind, (), _TOKENS[kind], data))
    return ProcessedPrompt(tuple(ids), media=tuple(media))


@dataclass(frozen=True)
class Asked:
    """What the thinker's stage says of one request, and what transformers speaks."""

    prompt: TalkerPrompt
    media: torch.Tensor
    spoken: Spoken

    def items(self, *, tokens: int | None = None, media_rows: int = 10, voice: str | None = None) -> Iterator[Any]:
        """Payloads one by one: the prompt, its rows of media, each token of the text, and the end."""
        handoff = self.prompt.to_handoff()
        arrays = {name: Tensor.of(value) for name, value in handoff.items() if isinstance(value, np.ndarray)}
        plain = {NEXT_POSITION: handoff[NEXT_POSITION]}
        yield MultimodalPayload(arrays, {"prompt": plain, "voice": voice}, lent=True)
        for start in range(0, len(self.media), media_rows):
            yield MultimodalPayload({MEDIA: Tensor.of(self.media[start : start + media_rows].numpy())}, lent=True)
        for token in self.spoken.token_ids[:tokens]:
            yield MultimodalPayload(metadata={"token_ids": [token]})
        yield MultimodalPayload(metadata={"token_ids": [], "ended": True})

    @property
    def frames(self) -> list[list[int]]:
        found: list[list[int]] = self.spoken.codes.tolist()
        return found


@torch.no_grad()
def asked_of(model: Any, prompt: ProcessedPrompt, *, text_tokens: int = 8, frames: int = 24, **spoken: Any) -> Asked:
    """`spoken`: further arguments of `reference.speak`."""
    inputs = inputs_of(prompt)
    ids, config = inputs["input_ids"][0], model.config
    begins = [*(ids == config.im_start_token_id).nonzero().flatten().tolist(), len(ids)]
    turns = [range(a, b) for a, b in itertools.pairwise(begins) if ids[a + 1] == config.user_token_id]
    at = [place for turn in turns for place in turn]
    named = config.talker_config
    is_media = torch.isin(ids, torch.tensor([named.audio_token_id, named.image_token_id, named.video_token_id]))
    hidden = model.thinker(**inputs, output_hidden_states=True, use_cache=False).hidden_states
    rows = hidden[named.accept_hidden_layer][0][[place for place in at if is_media[place]]]
    talker_ids = torch.cat([ids[at], torch.full((ASSISTANT_ROWS,), config.tts_pad_token_id)])[None]
    positions, next_position = _positions(model, inputs, talker_ids)
    said = TalkerPrompt(
        ids[at].numpy().astype(np.int32), np.flatnonzero(is_media[at]).astype(np.int32), positions, next_position
    )
    return Asked(said, rows, speak(model, inputs, text_tokens=text_tokens, frames=frames, **spoken))


def _positions(model: Any, inputs: dict[str, Any], talker_ids: torch.Tensor) -> tuple[np.ndarray[Any, Any], int]:
    length = talker_ids.shape[1]
    if "pixel_values" not in inputs and "input_features" not in inputs:
        return np.tile(np.arange(length, dtype=np.int32), (3, 1)), length
    mask = inputs.get("feature_attention_mask")
    found, delta = model.talker.get_rope_index(
        talker_ids,
        inputs.get("image_grid_thw"),
        None,
        torch.ones_like(talker_ids),
        False,
        None if mask is None else mask.sum(-1),
        None,
    )
    return found[:, 0].numpy().astype(np.int32), length + int(delta)


def heard_by_reference(model: Any, prompt: ProcessedPrompt, *, speaker: str = "ethan") -> dict[str, torch.Tensor]:
    """What transformers gives its talker for 8 tokens of text (`inputs_embeds`, `trailing_text_hidden`, `tts_pad_embed`), and the
    `logits` [12, vocab] of the first codes of 12 frames, before anything is done to them."""
    given: dict[str, Any] = {}
    generate = model.talker.generate

    def listen(**named: Any) -> Any:
        given.update(named)
        made = generate(**named, output_logits=True)
        given["logits"] = torch.stack(made.logits, dim=1)
        return made

    model.talker.generate = listen
    try:
        speak(model, inputs_of(prompt), text_tokens=8, frames=11, speaker=speaker)
    finally:
        model.talker.generate = generate
    return {name: given[name][0] for name in ("inputs_embeds", "trailing_text_hidden", "tts_pad_embed", "logits")}


def talker_engine(folder: Path, **changes: Any) -> ARStageEngine:
    return build_ar_engine(talker_config(folder, **changes))


def talker_config(folder: Path, **changes: Any) -> ARStageConfig:
    settings: dict[str, Any] = {
        "stage_id": TALKER,
        "model_stage": "talker",
        "process": "main",
        "model_path": str(folder),
        "loader": "omnistage.models.qwen3_omni.talker_loader:load",
        "bridge": "omnistage.models.qwen3_omni.bridges:talker_bridge",
        "input_sources": (0,),
        "kv_cache_bytes": 4 * 2**20,
        "block_size": 16,
        "max_num_seqs": 8,
        "max_model_len": 256,
    }
    return ARStageConfig(**{**settings, **changes})


def begin(engine: ARStageEngine, name: str, params: SamplingParams, arrival: int = 0, voice: str | None = None) -> None:
    request = OmniRequest(
        request_id=name,
        prompt=Prompt(text="as the thinker read it"),
        wants=("audio",),
        stage_params={TALKER: params, CODE2WAV: GenerationParams(voice=voice)},
    )
    engine.add(StageRequest(request, 0, TALKER, (0, arrival), frozenset({CODE2WAV})))


def send(engine: ARStageEngine, name: str, items: Sequence[MultimodalPayload]) -> None:
    """All of them, as they would lie in memory of the sender's."""
    for seq, item in enumerate(items):
        engine.feed(name, 0, seq, item, last=seq == len(items) - 1)


def frames(heard: Heard) -> list[list[int]]:
    captures = [output.capture for output in heard.outputs if output.capture is not None]
    made = [capture.numpy("frames") for capture in captures if "frames" in capture.tensors]
    found: list[list[int]] = np.concatenate(made).tolist() if made else []
    return found
