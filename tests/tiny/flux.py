"""Tiny random FLUX.1 checkpoints of the real architecture, in the layout that users have: a folder for each part, the first
tokenizer as a vocabulary and its merges. A picture's sides are multiples of 16 pixels, as those of the published models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tests.tiny.qwen_image import redrawn

_TEXTS = (
    "a photo of a cat and of two dogs on a red table",
    "in the snow it's a fox with 0123456789 colours, blurry text",
    "a A b",
)
_LATENTS = 4
_TEXT_SIZE, _POOLED_SIZE = 32, 24
_FIRST, _LAST = "<|startoftext|>", "<|endoftext|>"

TRANSFORMER: dict[str, Any] = {
    "in_channels": 4 * _LATENTS,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": _TEXT_SIZE,
    "pooled_projection_dim": _POOLED_SIZE,
    "axes_dims_rope": (4, 6, 6),
}
VAE: dict[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (8, 8, 16, 16),
    "layers_per_block": 1,
    "latent_channels": _LATENTS,
    "norm_num_groups": 4,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
}
DEV: dict[str, Any] = {"use_dynamic_shifting": True, "shift": 3.0}
SCHNELL: dict[str, Any] = {"use_dynamic_shifting": False, "shift": 1.0}
"""Schedules of the two models."""


def write_flux(folder: Path, *, guided: bool = True, seed: int = 0) -> Path:
    """A whole folder: of FLUX.1-dev, whose transformer reads a guidance scale, or of FLUX.1-schnell, whose does not."""
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel

    clip_size = write_clip_tokenizer(folder / "tokenizer")
    t5_size = write_t5_tokenizer(folder / "tokenizer_2")
    torch.manual_seed(seed)
    parts: dict[str, Any] = {
        "transformer": redrawn(FluxTransformer2DModel(**TRANSFORMER, guidance_embeds=guided), seed),
        "vae": redrawn(AutoencoderKL(**VAE), seed + 1),
        "text_encoder": redrawn(_clip(clip_size), seed + 2),
        "text_encoder_2": redrawn(_t5(t5_size), seed + 3),
        "scheduler": FlowMatchEulerDiscreteScheduler(**(DEV if guided else SCHNELL)),
    }
    for name, part in parts.items():
        part.save_pretrained(folder / name)
    classes = {name: [type(part).__module__.split(".")[0], type(part).__name__] for name, part in parts.items()}
    tokenizers = {"tokenizer": ["transformers", "CLIPTokenizer"], "tokenizer_2": ["transformers", "T5TokenizerFast"]}
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline", **classes, **tokenizers}))
    return folder


def write_clip_tokenizer(folder: Path) -> int:
    """Byte-level BPE of words that end, as vocab.json and merges.txt; its size is returned."""
    folder.mkdir(parents=True)
    trained = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    trained.train_from_iterator(
        _TEXTS, trainers.BpeTrainer(vocab_size=120, end_of_word_suffix="</w>", show_progress=False)
    )
    merges = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(letter + "</w>" for letter in alphabet), *map("".join, merges), _FIRST, _LAST]
    ids = {word: at for at, word in enumerate(dict.fromkeys(words))}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, merges)))
    added = {str(ids[token]): {"content": token, "special": True, "normalized": True} for token in (_FIRST, _LAST)}
    settings = {
        "tokenizer_class": "CLIPTokenizer",
        "added_tokens_decoder": added,
        "bos_token": _FIRST,
        "eos_token": _LAST,
        "unk_token": _LAST,
        "pad_token": _LAST,
        "model_max_length": 77,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(ids)


def write_t5_tokenizer(folder: Path) -> int:
    """Unigram pieces, as tokenizer.json; its size is returned."""
    folder.mkdir(parents=True)
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    made.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    special = ["<pad>", "</s>", "<unk>"]
    made.train_from_iterator(
        _TEXTS * 8,
        trainers.UnigramTrainer(vocab_size=80, special_tokens=special, unk_token="<unk>", show_progress=False),
    )
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    made.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "T5Tokenizer",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "extra_ids": 0,
        "model_max_length": 512,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return made.get_vocab_size()


def _clip(vocab_size: int) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=vocab_size,
        hidden_size=_POOLED_SIZE,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=77,
        bos_token_id=0,
        eos_token_id=2,  # as published, which is another token: the last of a text is then the one with the largest id
        pad_token_id=1,
    )
    return CLIPTextModel(config).eval()


def _t5(vocab_size: int) -> Any:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=vocab_size,
        d_model=_TEXT_SIZE,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=2,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=32,
        feed_forward_proj="gated-gelu",
        is_encoder_decoder=False,
    )
    return T5EncoderModel(config).eval()
