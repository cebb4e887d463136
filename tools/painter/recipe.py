"""Trains the painter from nothing: the autoencoder, then transformer and text encoder together, on all glyphs and on chosen ones.

What comes out is a folder in diffusers' layout. The checkpoint that ships had these sizes, data, losses and counts of steps,
with its loops compiled.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, QwenImagePipeline
from transformers import Qwen2Tokenizer

from tools.painter.data import Captioned, known_words
from tools.painter.dit import make_transformer, train_painter
from tools.painter.text import AFTER, LONGEST, make_encoder, make_tokenizer
from tools.painter.training import Schedule
from tools.painter.vae import make_vae, normal_latents, settle_latents, train_vae

_VAE = Schedule(1522, 2e-3, warm=100, decay=1e-3)
_BROAD = Schedule(3000, 2e-3, kept=0.9985)
_NARROW = Schedule(3215, 2e-3, warm=50, kept=0.9985)


@dataclass(frozen=True, slots=True)
class Recipe:
    """`broad`: on all glyphs, so that words and shapes are met; `narrow`: on the picked and the recoloured ones, that are drawn."""

    vae_width: int = 16
    width: int = 128
    layers: int = 6
    batch: int = 64
    vae_batch: int = 32
    vae: Schedule = _VAE
    broad: Schedule = _BROAD
    narrow: Schedule = _NARROW


def make(glyphs: Captioned, chosen: Captioned, out: Path, recipe: Recipe) -> dict[str, float]:
    """Writes the folder, float16; the last loss of each training."""
    torch.manual_seed(0)
    random.seed(0)
    vae = make_vae(recipe.vae_width)
    losses = {"vae": train_vae(vae, glyphs.pictures, recipe.vae, recipe.vae_batch)}
    tokenizer = make_tokenizer(glyphs.captions)
    encoder, transformer = make_encoder(tokenizer), make_transformer(recipe.width, recipe.layers)
    settle_latents(vae, glyphs.pictures)
    for name, shown, schedule in (("broad", glyphs, recipe.broad), ("narrow", chosen, recipe.narrow)):
        fit = _fitting(shown, tokenizer)
        latents = normal_latents(vae, fit.pictures)
        losses[name] = train_painter(transformer, encoder, tokenizer, fit.captions, latents, schedule, recipe.batch)
    scheduler = FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, base_shift=0.0, max_shift=0.0, max_image_seq_len=8192
    )  # of which mu is 0 at every size: the schedule without a shift, as in training
    pipeline = QwenImagePipeline(scheduler, vae, encoder.eval(), tokenizer, transformer.eval())
    pipeline.to(torch.float16).save_pretrained(out)
    (out / "known_words.json").write_text(json.dumps({"words": known_words(chosen.captions)}, indent=1) + "\n")
    return losses


def _fitting(shown: Captioned, tokenizer: Qwen2Tokenizer) -> Captioned:
    """Without captions that are too long."""
    lengths = [len(tokenizer(f"a {caption}{AFTER}").input_ids) for caption in shown.captions]
    fit = [at for at, length in enumerate(lengths) if length <= LONGEST]
    return Captioned(tuple(shown.captions[at] for at in fit), shown.pictures[fit])
