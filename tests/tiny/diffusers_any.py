"""Tiny random checkpoints of pipelines that are called as a whole, in the layout that users have: one with a U-Net and a solver
that draws noise at every step, one with a transformer and two text encoders.

All weights are drawn anew, as libraries leave some of them at nothing. A picture's sides are multiples of 8 pixels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.tiny.qwen_image import redrawn

_START, _END = "<|startoftext|>", "<|endoftext|>"
_TEXT_WIDTH = 32


def write_stable_diffusion(folder: Path) -> Path:
    """StableDiffusionPipeline with Euler's method and noise of its own at every step."""
    from diffusers import AutoencoderKL, EulerAncestralDiscreteScheduler, StableDiffusionPipeline, UNet2DConditionModel

    unet = UNet2DConditionModel(
        block_out_channels=(16, 32),
        layers_per_block=1,
        sample_size=16,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=_TEXT_WIDTH,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    parts = {
        "vae": _autoencoder(AutoencoderKL, 4),
        "text_encoder": _text_encoder(pooled=False),
        "tokenizer": _tokenizer(),
        "unet": unet,
        "scheduler": EulerAncestralDiscreteScheduler(beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1),
    }
    _redraw(parts)
    pipeline = StableDiffusionPipeline(
        **parts, safety_checker=None, feature_extractor=None, requires_safety_checker=False
    )
    pipeline.save_pretrained(folder)
    return folder


def write_stable_diffusion_3(folder: Path) -> Path:
    """StableDiffusion3Pipeline without its third text encoder, which is optional."""
    from diffusers import (
        AutoencoderKL,
        FlowMatchEulerDiscreteScheduler,
        SD3Transformer2DModel,
        StableDiffusion3Pipeline,
    )

    transformer = SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=2 * _TEXT_WIDTH,
        caption_projection_dim=32,
        pooled_projection_dim=2 * _TEXT_WIDTH,
        pos_embed_max_size=16,
    )
    parts = {
        "transformer": transformer,
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=3.0),
        "vae": _autoencoder(AutoencoderKL, 4),
        "text_encoder": _text_encoder(pooled=True),
        "text_encoder_2": _text_encoder(pooled=True),
        "tokenizer": _tokenizer(),
        "tokenizer_2": _tokenizer(),
    }
    _redraw(parts)
    StableDiffusion3Pipeline(**parts, text_encoder_3=None, tokenizer_3=None).save_pretrained(folder)
    return folder


def _autoencoder(kind: Any, channels: int) -> Any:
    """A latent is 2 pixels wide."""
    return kind(
        block_out_channels=(8, 16),
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=channels,
        norm_num_groups=4,
        sample_size=32,
        shift_factor=0.1,
    )


def _text_encoder(*, pooled: bool) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        hidden_size=_TEXT_WIDTH,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=2,
        projection_dim=_TEXT_WIDTH,
        vocab_size=len(_vocabulary()),
        bos_token_id=_vocabulary()[_START],
        eos_token_id=_vocabulary()[_END],
        pad_token_id=_vocabulary()[_END],
    )
    return (CLIPTextModelWithProjection if pooled else CLIPTextModel)(config)


def _vocabulary() -> dict[str, int]:
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    return {token: place for place, token in enumerate([*letters, *(f"{one}</w>" for one in letters), _START, _END])}


def _tokenizer() -> Any:
    from transformers import CLIPTokenizer

    return CLIPTokenizer(vocab=_vocabulary(), merges=[], model_max_length=77)


@torch.no_grad()
def _redraw(parts: dict[str, Any]) -> None:
    for seed, part in enumerate(parts.values()):
        if isinstance(part, torch.nn.Module):
            redrawn(part, seed)
