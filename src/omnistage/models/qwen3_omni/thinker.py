"""The thinker: a decoder with a mixture of experts that reads text, pictures, videos and sound, and writes text.

The rows of pictures and videos are added to between its first layers, too (deepstack). What the talker is told of media is what
layer `accept_hidden_layer` - 1 makes of their rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch

from omnistage.config.stage import ARStageConfig
from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.checkpoint import WeightsReader
from omnistage.modeling.decoder import Decoder, DecoderShape, decoder_shape, read_decoder
from omnistage.modeling.folder import Section
from omnistage.modeling.kernels.chosen import chosen_layout
from omnistage.modeling.protocols import Attend, EncodedMedia, MediaInput
from omnistage.modeling.step import ARStep, StepRows
from omnistage.modeling.tensors import dtype_of
from omnistage.models.qwen3_omni.encoders import Encoders, load_encoders
from omnistage.models.qwen3_omni.settings import read_config

PREFIX = "thinker."
DEFAULT_SECTIONS = (24, 20, 20)
"""Rotary planes by position where the configuration is silent; as transformers has it."""


class Thinker:
    """An `ARModel` that encodes media and has rotary positions of three axes."""

    def __init__(self, decoder: Decoder, encoders: Encoders, capture_layers: Sequence[int]) -> None:
        self.num_layers, self.num_kv_heads = decoder.num_layers, decoder.num_kv_heads
        self.head_dim, self.hidden_size = decoder.head_dim, decoder.hidden_size
        self.vocab_size, self.max_positions = decoder.vocab_size, decoder.max_positions
        self.dtype, self.device = decoder.dtype, decoder.device
        self.capture_layers = tuple(capture_layers)
        self._decoder = decoder
        self._encoders = encoders

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._decoder.embed(token_ids)

    def forward(self, step: StepRows, attend: Attend, capture_layers: Sequence[int] = ()) -> ARStep:
        """See `ARModel`."""
        return self._decoder.forward(step, attend, capture_layers)

    def rotations(self, positions: torch.Tensor) -> torch.Tensor:
        """See `PositionedModel`."""
        return self._decoder.rotations(positions)

    def encode(self, inputs: Sequence[MediaInput]) -> list[EncodedMedia]:
        """See `EncodingModel`."""
        return self._encoders.encode(inputs)


def load(config: ARStageConfig) -> Thinker:
    """The thinker of `config.model_path`. Raises BrokenCheckpointError."""
    folder = Path(config.model_path)
    whole = read_config(folder)
    settings = whole.section("thinker_config")
    reader = WeightsReader(folder, dtype_of(config.dtype), PREFIX)
    decoder = read_decoder(reader, shape_of(settings.section("text_config")), layout=chosen_layout())
    return Thinker(decoder, load_encoders(reader, settings.values), _capture_layers(whole, decoder.num_layers))


def shape_of(text: Section) -> DecoderShape:
    """Of the thinker or the talker. Raises BrokenCheckpointError."""
    try:
        shape = decoder_shape(text.values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BrokenCheckpointError(f"{text.where} describes no decoder: {type(error).__name__} {error}") from None
    if shape is None:
        raise BrokenCheckpointError(f"{text.where} asks for a decoder that this version has not")
    return shape if shape.rope_sections is not None else dataclasses.replace(shape, rope_sections=DEFAULT_SECTIONS)


def _capture_layers(whole: Section, num_layers: int) -> list[int]:
    """What the talker reads; nothing where there is none."""
    if "talker_config" not in whole.values:
        return []
    talker = whole.section("talker_config")
    layer = talker.integer("accept_hidden_layer", 18, least=0)
    if layer > num_layers:
        raise talker.wrong("accept_hidden_layer", layer, f"an integer in [0, {num_layers}]")
    return [layer]
