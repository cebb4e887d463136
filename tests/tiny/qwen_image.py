"""Tiny random Qwen-Image checkpoints of the real architecture, in the layout that users have: a folder for each part.

All weights are drawn anew by their fan-in: as the library initialises them, blocks hardly change what goes through them, and no
test would see a fault in one. A picture's sides are multiples of 8 pixels.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_TEXTS = (
    "system\nuser\nassistant\nDescribe the key features of the input image, then alter or modify it. Picture 1: Picture 2:",
    "color, shape, size, texture, quantity, text, spatial relationships of the objects and background:",
    "a photo of a cat and of two dogs on a red table 0123456789",
)
_LATENTS = 4
_TEXT_SIZE = 32

TRANSFORMER: dict[str, Any] = {
    "patch_size": 2,
    "in_channels": 4 * _LATENTS,
    "out_channels": _LATENTS,
    "num_layers": 3,
    "attention_head_dim": 16,
    "num_attention_heads": 4,
    "joint_attention_dim": _TEXT_SIZE,
    "axes_dims_rope": (8, 4, 4),
}
VAE: dict[str, Any] = {
    "base_dim": 8,
    "z_dim": _LATENTS,
    "dim_mult": [1, 2, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [False, True],
    "latents_mean": [0.3, -0.2, 0.1, 0.0],
    "latents_std": [1.5, 0.8, 1.1, 0.9],
}
SCHEDULE: dict[str, Any] = {
    "shift": 1.0,
    "use_dynamic_shifting": True,
    "base_shift": 0.5,
    "max_shift": 0.9,
    "base_image_seq_len": 256,
    "max_image_seq_len": 8192,
    "shift_terminal": 0.02,
}


PREPROCESSOR: dict[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "min_pixels": 56 * 56,
    "max_pixels": 28 * 28 * 1280,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def write_qwen_image(folder: Path, class_name: str = "QwenImagePipeline", *, seed: int = 0, **changes: Any) -> Path:
    """A whole folder for the pipeline `class_name` of diffusers. `changes` are the transformer's."""
    from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler

    tokenizer = _tokenizer()
    torch.manual_seed(seed)
    parts: dict[str, Any] = {
        "transformer": write_transformer(folder, seed=seed, **changes),
        "vae": redrawn(AutoencoderKLQwenImage(**VAE), seed + 1),
        "text_encoder": _text_encoder(tokenizer, seed + 2),
        "scheduler": FlowMatchEulerDiscreteScheduler(**SCHEDULE),
        "tokenizer": tokenizer,
    }
    for name, part in parts.items():
        if name != "transformer":
            part.save_pretrained(folder / name)
    if class_name != "QwenImagePipeline":
        write_processor(folder)
    classes = {name: [type(part).__module__.split(".")[0], type(part).__name__] for name, part in parts.items()}
    (folder / "model_index.json").write_text(json.dumps({"_class_name": class_name, **classes}))
    return folder


def write_processor(folder: Path) -> None:
    """How pictures are read, which only folders of edit pipelines say."""
    (folder / "processor").mkdir(exist_ok=True)
    (folder / "processor" / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))


def write_transformer(folder: Path, *, seed: int = 0, **changes: Any) -> Any:
    """The transformer alone, which is returned as diffusers has it."""
    from diffusers import QwenImageTransformer2DModel

    made = redrawn(QwenImageTransformer2DModel(**TRANSFORMER | changes), seed)
    made.save_pretrained(folder / "transformer")
    return made


def _tokenizer() -> Any:
    """Byte-level BPE; the special tokens stand behind it."""
    from transformers import Qwen2Tokenizer

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        _TEXTS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    made = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(pair) for pair in model["merges"]],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=None,
        model_max_length=32768,
    )
    made.add_tokens(list(SPECIAL_TOKENS), special_tokens=True)
    return made


def _text_encoder(tokenizer: Any, seed: int) -> Any:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("image_pad", "video_pad")}
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 512,
            "hidden_size": _TEXT_SIZE,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_parameters": {"mrope_section": [2, 1, 1], "rope_type": "default", "rope_theta": 1e4},
            "max_position_embeddings": 4096,
            "bos_token_id": None,
            "eos_token_id": None,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": _TEXT_SIZE,
            "fullatt_block_indexes": [1],
        },
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    )
    return redrawn(Qwen2_5_VLForConditionalGeneration(config).eval(), seed)


@torch.no_grad()
def redrawn(module: Any, seed: int) -> Any:
    """`module` with weights that make a difference; see the head of this file."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if parameter.dim() >= 2 and not name.endswith("gamma"):
            parameter.normal_(0, parameter[0].numel() ** -0.5, generator=generator)
        elif name.endswith("bias"):
            parameter.normal_(0, 0.1, generator=generator)
        else:  # weights of norms
            parameter.uniform_(0.7, 1.3, generator=generator)
    return module
