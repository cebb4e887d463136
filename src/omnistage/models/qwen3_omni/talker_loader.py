"""Loads the talker of a Qwen3-Omni folder: its own tensors, its code predictor's, and the thinker's embeddings where they lie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from omnistage.config.stage import ARStageConfig
from omnistage.modeling.checkpoint import WeightsReader
from omnistage.modeling.decoder import Decoder, DecoderNames, DecoderShape, read_decoder, read_linear
from omnistage.modeling.folder import Section
from omnistage.modeling.kernels.chosen import chosen_layout
from omnistage.modeling.linear import Layout, with_bias
from omnistage.modeling.tensors import dtype_of
from omnistage.modeling.tokenizer import load_tokenizer
from omnistage.models.qwen3_omni.code_predictor import read_code_predictor
from omnistage.models.qwen3_omni.settings import read_config
from omnistage.models.qwen3_omni.talker import Projection, Talker, TalkerIds, TalkerParts
from omnistage.models.qwen3_omni.thinker import shape_of

SUPPRESSED = 1024
"""The last ids of the talker's vocabulary: control codes and speakers, which are never drawn but for the end."""

_TEXT_TABLE = "thinker.model.embed_tokens.weight"


def load(config: ARStageConfig) -> Talker:
    """Raises BrokenCheckpointError for a folder that has no talker, or one of another kind."""
    folder, dtype = Path(config.model_path), dtype_of(config.dtype)
    settings = read_config(folder)
    shapes, ids = _shapes(settings), _ids(settings, folder)
    text = WeightsReader(folder, dtype, prefix=_TEXT_TABLE).mapped("", shapes.text)
    reader = WeightsReader(folder, dtype, prefix="talker.")
    return Talker(_parts(reader, shapes, ids, chosen_layout(), text), ids)


@dataclass(frozen=True, slots=True)
class _Shapes:
    """`text` [vocab, hidden] of the thinker; `groups` of codes; `projection` is the width between two layers."""

    decoder: DecoderShape
    predictor: DecoderShape
    text: tuple[int, int]
    groups: int
    projection: int


def _shapes(settings: Section) -> _Shapes:
    talker = settings.section("talker_config")
    text, own = settings.section("thinker_config").section("text_config"), talker.section("text_config")
    decoder, predictor = shape_of(own), shape_of(talker.section("code_predictor_config"))
    if decoder.experts is not None:  # the published model has experts in every layer, whatever is named dense
        decoder = replace(decoder, experts=replace(decoder.experts, dense_layers=frozenset()))
    if predictor.hidden_size != decoder.hidden_size:
        wanted = f"{decoder.hidden_size}, as the talker has it"
        raise talker.section("code_predictor_config").wrong("hidden_size", predictor.hidden_size, wanted)
    return _Shapes(
        decoder,
        predictor,
        text=(text.integer("vocab_size", least=1), text.integer("hidden_size", least=1)),
        groups=talker.integer("num_code_groups", least=2),
        projection=own.integer("intermediate_size", least=1),
    )


def _ids(settings: Section, folder: Path) -> TalkerIds:
    """Where config.json may be silent, the defaults are those of transformers' configuration."""
    talker = settings.section("talker_config")
    speakers = {name.lower(): number for name, number in talker.section("speaker_id").values.items()}
    if not speakers:
        raise talker.wrong("speaker_id", speakers, "at least one speaker")
    (line_break,) = load_tokenizer(folder).encode("\n", add_special_tokens=False).ids
    return TalkerIds(
        opening=(
            settings.integer("im_start_token_id", 151644),
            settings.integer("assistant_token_id", 77091),
            line_break,
        ),
        pad=settings.integer("tts_pad_token_id", 151671),
        begin=settings.integer("tts_bos_token_id", 151672),
        end=settings.integer("tts_eos_token_id", 151673),
        thinking=(
            talker.integer("codec_nothink_id"),
            talker.integer("codec_think_bos_id"),
            talker.integer("codec_think_eos_id"),
        ),
        codec_pad=talker.integer("codec_pad_id"),
        codec_begin=talker.integer("codec_bos_id"),
        codec_end=talker.integer("codec_eos_token_id"),
        speakers=speakers,
    )


def _parts(reader: WeightsReader, shapes: _Shapes, ids: TalkerIds, layout: Layout, text: torch.Tensor) -> TalkerParts:
    shape, codebook = shapes.decoder, shapes.predictor.vocab_size
    names = {"model.codec_embedding.weight": [shape.vocab_size, shape.hidden_size]}
    for group in range(shapes.groups - 1):
        names[f"code_predictor.model.codec_embedding.{group}.weight"] = [codebook, shape.hidden_size]
    codes = reader.read_joined(names)
    own, *further = torch.split(codes, [shape.vocab_size, *[codebook] * (shapes.groups - 1)])
    read = read_decoder(reader, shape, layout=layout, names=DecoderNames("model.", "codec_embedding", "codec_head"))
    bias = torch.zeros(shape.vocab_size, dtype=codes.dtype)
    bias[-SUPPRESSED:] = float("-inf")
    bias[ids.codec_end] = 0.0
    head = with_bias(read.weights.head, bias)

    def projection(name: str) -> Projection:
        return Projection(
            read_linear(reader, {f"{name}.linear_fc1": shapes.projection}, shapes.text[1], layout),
            read_linear(reader, {f"{name}.linear_fc2": shape.hidden_size}, shapes.projection, layout),
        )

    return TalkerParts(
        decoder=Decoder(shape, replace(read.weights, embedding=own, head=head)),
        predictor=read_code_predictor(reader, shapes.predictor, further, layout),
        codes=codes,
        text=text,
        text_projection=projection("text_projection"),
        hidden_projection=projection("hidden_projection"),
    )
