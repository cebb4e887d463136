"""A request's prompt as the thinker reads it: ids in full, media ready for their encoders, positions, and what the talker needs.

    messages, text or ids -> ids with one token per item -> items read, in order -> ids in full, positions -> hand-over

Everything depends on the prompt alone, but for one thing: who wants speech must have a user turn that it can answer. Options
(`mm_processor_kwargs`): `use_audio_in_video` reads videos with their sound; `fps` is the pace at which frames are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from omnistage.config.stage import ARStageConfig
from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import OmniRequest, Prompt
from omnistage.modeling.protocols import MediaInput, ProcessedPrompt
from omnistage.modeling.text_processor import TextProcessor, load_text_processor
from omnistage.models.qwen3_omni.handoff import ASSISTANT_ROWS, TalkerPrompt
from omnistage.models.qwen3_omni.items import ItemReader, MediaOptions, ReadItem
from omnistage.models.qwen3_omni.limits import MediaLimits
from omnistage.models.qwen3_omni.positions import Block, heard_by_talker, rotary_positions
from omnistage.models.qwen3_omni.prompts import (
    Expanded,
    expand,
    named_in,
    parts_for_template,
    places,
    runs,
    user_turns,
)
from omnistage.models.qwen3_omni.settings import (
    PromptSettings,
    media_settings,
    prompt_settings,
    read_config,
    thinker_vocab_size,
)


def load_processor(config: ARStageConfig) -> OmniProcessor:
    """Of a Qwen3-Omni folder. Raises BrokenCheckpointError."""
    folder = Path(config.model_path)
    stated = read_config(folder)
    text = load_text_processor(Path(config.tokenizer_path or folder), thinker_vocab_size(stated), config.max_model_len)
    settings = prompt_settings(stated, text.tokenizer.token_to_id)
    reader = ItemReader(settings, media_settings(folder, settings), MediaLimits())
    return OmniProcessor(text, reader, settings, config.max_model_len)


class OmniProcessor:
    """A Processor and RepeatableProcessor of modeling.protocols."""

    def __init__(self, text: TextProcessor, reader: ItemReader, settings: PromptSettings, max_tokens: int) -> None:
        self._text = text
        self._reader = reader
        self._settings = settings
        self._max_tokens = max_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        return self._text.tokenizer

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._text.eos_token_ids

    def __call__(self, request: OmniRequest) -> ProcessedPrompt:
        """Raises InvalidRequestError for a prompt that cannot be read, or has nothing that speech could answer."""
        prompt = _with_names(request.prompt)
        options = MediaOptions.of(prompt.mm_processor_kwargs)
        ids = self._ids(prompt)
        items = self._read(ids, prompt, options)
        full = expand(ids, [item.block for item in items], self._settings.ids)
        turns = list(user_turns(full.ids, self._settings.ids))
        if "audio" in request.wants and not turns:
            field = "messages" if prompt.messages is not None else "prompt"
            raise InvalidRequestError.of(field, "no user turn", "at least one, which speech can answer")
        positions, next_position = None, None
        if any(block.grid is not None for block in full.blocks):
            positions, next_position = rotary_positions(len(full.ids), full.blocks)
        return ProcessedPrompt(
            tuple(full.ids.tolist()),
            media=tuple(_inputs(items, full.blocks)),
            positions=positions,
            next_position=next_position,
            handoff=talker_prompt(full, turns).to_handoff() if self._settings.speaks else {},
            outputs_at=runs(full.is_media & _inside(turns, len(full.ids))) if self._settings.speaks else (),
        )

    def depends_on_prompt_alone(self, prompt: Prompt) -> bool:
        """False without a user turn too: then it depends on what is wanted."""
        repeats = self._text.depends_on_prompt_alone(prompt)
        return repeats and any(user_turns(np.array(self._ids(prompt), np.int32), self._settings.ids))

    def _ids(self, prompt: Prompt) -> tuple[int, ...]:
        """With one token for every item."""
        if prompt.messages is None:
            return self._text.ids_of(prompt)
        extra = prompt.additional_information.get("chat_template_kwargs", {})
        text = self._text.fill(parts_for_template(prompt.messages, prompt.media), extra)
        return self._text.encode(text, "messages", add_special_tokens=False)

    def _read(self, ids: Sequence[int], prompt: Prompt, options: MediaOptions) -> list[ReadItem]:
        """The items, in order. Each is asked how long it is before it is read, so what does not fit costs nothing."""
        media = prompt.media if prompt.messages is None else named_in(prompt.messages, prompt.media)
        found = places(ids, media, self._settings.ids, prompt, with_sound=options.use_audio_in_video)
        room = self._max_tokens - 1 - (len(ids) - len(found))
        items = []
        for place in found:
            items.append(self._reader.read(place, options, room))
            room -= items[-1].tokens
        return items


def talker_prompt(full: Expanded, turns: Sequence[tuple[int, int]]) -> TalkerPrompt:
    """What the talker reads of a prompt: the user turns, joined, and where they and the answer's first rows stand."""
    said = _inside(turns, len(full.ids))
    before = np.concatenate([[0], np.cumsum(said)])
    blocks = [replace(block, start=int(before[block.start])) for block in full.blocks if said[block.start]]
    count = int(before[-1])
    positions, next_position = rotary_positions(count + ASSISTANT_ROWS, heard_by_talker(blocks))
    rows = np.flatnonzero(full.is_media[said]).astype(np.int32)
    return TalkerPrompt(full.ids[said], rows, positions, next_position)


def _inside(turns: Sequence[tuple[int, int]], length: int) -> npt.NDArray[np.bool_]:
    """[length]: true inside the spans."""
    made = np.zeros(length, np.bool_)
    for start, end in turns:
        made[start:end] = True
    return made


def _inputs(items: Sequence[ReadItem], blocks: Sequence[Block]) -> Iterator[MediaInput]:
    """Each item's inputs, with the places of their rows in the prompt."""
    for item, block in zip(items, blocks, strict=True):
        sound = block.is_sound()
        for read in item.inputs:
            rows = sound if read.kind == "audio" else ~sound
            spans = tuple((block.start + start, block.start + end) for start, end in runs(rows))
            yield MediaInput(read.kind, read.key, spans, int(rows.sum()), read.data)


def _with_names(prompt: Prompt) -> Prompt:
    """Every item is called something in messages."""
    named = tuple(
        item if item.where else msgspec.structs.replace(item, where=f"media[{at}]")
        for at, item in enumerate(prompt.media)
    )
    return msgspec.structs.replace(prompt, media=named)
