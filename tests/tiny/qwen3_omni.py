"""Tiny random Qwen3-Omni checkpoints of the real architecture, in the layout that users have: thinker, talker, code2wav, tokenizer.

Ids that the model compares stand where it expects them: the talker's control and speaker ids in the last 1024 of its vocabulary,
of which only the end may be drawn; `system`, `user` and `assistant` are one token each. Weights are drawn wide, so that greedy
decoding wanders, and the decoder's last convolution is scaled so that its sound can be heard.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
)
ROLES = ("system", "user", "assistant")
_TEXTS = (
    "You are a helpful assistant that hears, sees and speaks.",
    "What is in the picture, and what does it sound like?",
    "system\nuser\nassistant\nHello! Hi there. The quick brown fox jumps over the lazy dog 0123456789.",
)
CHAT_TEMPLATE = """\
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- elif part.type == 'audio' %}{{ '<|audio_start|><|audio_pad|><|audio_end|>' }}
{%- elif part.type == 'text' %}{{ part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}{{ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
SUPPRESSED = 1024
"""The talker's last ids, which are never drawn but for the end."""


@dataclass(frozen=True, slots=True)
class OmniShape:
    """What checkpoints of the tests differ in. `accept` lies between the number of deepstack layers and `layers`."""

    seed: int = 0
    groups: int = 4
    layers: int = 4
    talker_layers: int = 2
    accept: int = 3
    hidden: int = 64
    heads: int = 4
    codebook: int = 64
    experts: int = 4
    experts_per_token: int = 2
    expert_size: int = 32
    talker_expert_size: int = 32
    predictor_size: int = 96
    predictor_head_dim: int = 16
    codec_hidden: int = 32
    codec_layers: int = 2
    decoder_dim: int = 32
    deepstack: tuple[int, ...] = (0, 1)
    vocab_size: int = 512


SHAPES = (
    OmniShape(),
    OmniShape(seed=1, groups=2, layers=3, accept=2, deepstack=(0,)),
    OmniShape(seed=2, groups=8, layers=5, talker_layers=3, accept=4, hidden=96, experts=6),
    OmniShape(seed=3, groups=16, layers=6, talker_layers=1, accept=3, codebook=128),
)


def train_tokenizer(vocab_size: int = 512) -> Tokenizer:
    """Byte-level BPE with the special tokens behind it; each role is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*_TEXTS, *ROLES * 50], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    assert all(len(tokenizer.encode(role).ids) == 1 for role in ROLES)
    return tokenizer


def omni_settings(tokenizer: Tokenizer, shape: OmniShape) -> dict[str, Any]:
    """The arguments of transformers' Qwen3OmniMoeConfig."""
    named = {
        "audio_token_id": tokenizer.token_to_id("<|audio_pad|>"),
        "image_token_id": tokenizer.token_to_id("<|image_pad|>"),
        "video_token_id": tokenizer.token_to_id("<|video_pad|>"),
        "vision_start_token_id": tokenizer.token_to_id("<|vision_start|>"),
        "audio_start_token_id": tokenizer.token_to_id("<|audio_start|>"),
        "position_id_per_seconds": 13,
    }
    roles = {f"{role}_token_id": tokenizer.encode(role).ids[0] for role in ROLES}
    thinker = {
        "audio_config": _audio(shape),
        "vision_config": _vision(shape),
        "text_config": _decoder(shape, shape.layers, tokenizer.get_vocab_size(), shape.expert_size),
        "vision_end_token_id": tokenizer.token_to_id("<|vision_end|>"),
        "audio_end_token_id": tokenizer.token_to_id("<|audio_end|>"),
        "user_token_id": roles["user_token_id"],
        **named,
    }
    return {
        "thinker_config": thinker,
        "talker_config": _talker(shape) | named,
        "code2wav_config": _code2wav(shape),
        "enable_audio_output": True,
        "im_start_token_id": tokenizer.token_to_id("<|im_start|>"),
        "im_end_token_id": tokenizer.token_to_id("<|im_end|>"),
        "tts_pad_token_id": tokenizer.token_to_id("<tts_pad>"),
        "tts_bos_token_id": tokenizer.token_to_id("<tts_text_bos>"),
        "tts_eos_token_id": tokenizer.token_to_id("<tts_text_eod>"),
        **roles,
    }


def _audio(shape: OmniShape) -> dict[str, Any]:
    return {
        "num_mel_bins": 128,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "d_model": 32,
        "n_window": 50,
        "n_window_infer": 800,
        "conv_chunksize": 500,
        "downsample_hidden_size": 16,
        "output_dim": shape.hidden,
        "max_source_positions": 1500,
    }


def _vision(shape: OmniShape) -> dict[str, Any]:
    return {
        "depth": max(shape.deepstack) + 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": shape.hidden,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": list(shape.deepstack),
    }


def _decoder(shape: OmniShape, layers: int, vocab_size: int, expert_size: int) -> dict[str, Any]:
    head_dim = shape.hidden // shape.heads
    return {
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads // 2,
        "head_dim": head_dim,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.experts_per_token,
        "moe_intermediate_size": expert_size,
        "norm_topk_prob": True,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [head_dim // 2 - 2 * (head_dim // 8), head_dim // 8, head_dim // 8],
            "mrope_interleaved": True,
        },
    }


def _talker(shape: OmniShape) -> dict[str, Any]:
    control = shape.codebook + 100  # the first of the control ids
    return {
        "num_code_groups": shape.groups,
        "thinker_hidden_size": shape.hidden,
        "accept_hidden_layer": shape.accept,
        "codec_pad_id": control,
        "codec_bos_id": control + 1,
        "codec_eos_token_id": control + 2,
        "codec_nothink_id": control + 7,
        "codec_think_bos_id": control + 8,
        "codec_think_eos_id": control + 9,
        "spatial_merge_size": 2,
        "speaker_id": {"chelsie": control + 20, "ethan": control + 21, "aiden": control + 22},
        "text_config": {
            **_decoder(shape, shape.talker_layers, shape.codebook + SUPPRESSED, shape.talker_expert_size),
            "shared_expert_intermediate_size": shape.talker_expert_size,
        },
        "code_predictor_config": {
            "vocab_size": shape.codebook,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.predictor_size,
            "num_hidden_layers": 2,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.heads // 2,
            "head_dim": shape.predictor_head_dim,
            "num_code_groups": shape.groups,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
    }


def _code2wav(shape: OmniShape) -> dict[str, Any]:
    return {
        "codebook_size": shape.codebook,
        "hidden_size": shape.codec_hidden,
        "num_attention_heads": shape.codec_hidden // 16,
        "num_key_value_heads": shape.codec_hidden // 16,
        "intermediate_size": 2 * shape.codec_hidden,
        "num_hidden_layers": shape.codec_layers,
        "num_quantizers": shape.groups,
        "sliding_window": 72,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "decoder_dim": shape.decoder_dim,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    }


def write_qwen3_omni(folder: Path, shape: OmniShape | None = None) -> Path:
    """A whole folder: configuration, weights, tokenizer, chat template, settings of the preprocessing."""
    import transformers

    shape = shape or OmniShape()
    tokenizer = train_tokenizer(shape.vocab_size)
    torch.manual_seed(shape.seed)
    config = transformers.Qwen3OmniMoeConfig(**omni_settings(tokenizer, shape))
    model = transformers.Qwen3OmniMoeForConditionalGeneration(config).eval()
    redraw(model, seed=shape.seed)
    model.generation_config.eos_token_id = config.im_end_token_id
    model.save_pretrained(folder)
    _write_tokenizer(folder, tokenizer)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return folder


@torch.no_grad()
def redraw(model: Any, *, seed: int) -> None:
    """Draws all weights of a transformers model anew, and makes its codec decoder audible."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.startswith("code2wav."):
            redraw_codec(name, parameter, generator)
        elif name.startswith(("thinker.model.", "thinker.lm_head.", "talker.")):
            _redraw_decoder(name, parameter, generator)
        elif parameter.dim() >= 2:
            parameter.normal_(0, 0.12, generator=generator)
    make_audible(model.code2wav, generator)


@torch.no_grad()
def _redraw_decoder(name: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
    """What was drawn last decides what comes next as much as what attention finds, which looks at few places."""
    if "q_norm" in name:
        parameter.fill_(3.0)
    elif parameter.dim() >= 2:
        spreads = {"embed": 4.0, "head": 0.25, "v_proj": 0.4, "o_proj": 0.2, "experts": 0.06}
        spread = next((spread for part, spread in spreads.items() if part in name), 0.12)
        parameter.normal_(0, spread, generator=generator)


@torch.no_grad()
def redraw_codec(name: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
    if "layer_scale" in name or name.endswith(".gamma"):
        parameter.fill_(0.5)
    elif "code_embedding" in name:
        parameter.normal_(0, 1.0, generator=generator)
    elif parameter.dim() >= 2:
        # Branches beside a residual stream are small, as trained ones are: else a rounding grows a thousandfold on its way.
        branch = 0.3 if name.endswith("conv2.conv.weight") else 1.0
        parameter.normal_(0, branch * parameter[0].numel() ** -0.5, generator=generator)


@torch.no_grad()
def make_audible(code2wav: Any, generator: torch.Generator, loudness: float = 0.2) -> None:
    """Scales the last convolution so that the samples of random codes have the standard deviation `loudness`."""
    raw: list[torch.Tensor] = []
    last = code2wav.decoder[-1]
    hook = last.register_forward_hook(lambda _module, _inputs, made: raw.append(made))
    config = code2wav.config
    code2wav(torch.randint(0, config.codebook_size, (1, config.num_quantizers, 20), generator=generator))
    hook.remove()
    last.conv.weight.mul_(loudness / raw[0].std())
    last.conv.bias.zero_()


PREPROCESSOR: dict[str, Any] = {
    "processor_class": "Qwen3OmniMoeProcessor",
    "image_processor_type": "Qwen2VLImageProcessor",
    "video_processor_type": "Qwen2VLVideoProcessor",
    "feature_extractor_type": "WhisperFeatureExtractor",
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "min_pixels": 32 * 32,
    "max_pixels": 128 * 128,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "feature_size": 128,
    "sampling_rate": 16000,
    "hop_length": 160,
    "chunk_length": 300,
    "n_fft": 400,
    "n_samples": 4800000,
    "nb_max_frames": 30000,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
}
"""One file for pictures, videos and sound, as published checkpoints have it."""


def _write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
        "image_token": "<|image_pad|>",
        "audio_token": "<|audio_pad|>",
        "video_token": "<|video_pad|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
        "audio_bos_token": "<|audio_start|>",
        "audio_eos_token": "<|audio_end|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
