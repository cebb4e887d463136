"""What the JSON files of a FLUX.1 folder say that a prompt or a picture depends on, as values. The library reads the rest, with the
parts. Every fault is one line that names the file and the key (BrokenCheckpointError). Knows no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omnistage.modeling.folder import CONFIG, Section, read_json

TRANSFORMER, VAE, SCHEDULER = "transformer", "vae", "scheduler"
CLIP, T5 = "text_encoder", "text_encoder_2"
CLIP_TOKENIZER, T5_TOKENIZER = "tokenizer", "tokenizer_2"
"""Folders of a model, named as in model_index.json."""
INDEX = "model_index.json"

EULER = "FlowMatchEulerDiscreteScheduler"
CLASSES = {
    TRANSFORMER: ("diffusers", "FluxTransformer2DModel"),
    VAE: ("diffusers", "AutoencoderKL"),
    SCHEDULER: ("diffusers", EULER),
    CLIP: ("transformers", "CLIPTextModel"),
    T5: ("transformers", "T5EncoderModel"),
}
"""Library and class of what is loaded."""

PATCH = 2
"""Latents on one side of a token."""


@dataclass(frozen=True, slots=True)
class FluxSettings:
    """`guided`: the transformer reads a guidance scale, as that of FLUX.1-dev does; without, it was distilled to draw in a few
    steps, as FLUX.1-schnell. `scale`: pixels on one side of a latent. `latents`: numbers in one. `clip_tokens`: of a prompt that
    the first encoder reads."""

    guided: bool
    scale: int
    latents: int
    clip_tokens: int
    clip_vocab: int
    t5_vocab: int

    @property
    def multiple(self) -> int:
        """Pixels on one side of a token: the sides of a picture are multiples."""
        return self.scale * PATCH

    @property
    def t5_tokens(self) -> int:
        """That the second encoder reads of a prompt, padded to so many: the models were trained so."""
        return 512 if self.guided else 256

    @property
    def steps(self) -> int:
        """Denoising steps where nobody says how many."""
        return 28 if self.guided else 4


def flux_settings(folder: Path) -> FluxSettings:
    _check_classes(folder)
    transformer, vae, clip, t5 = (_section(folder, part) for part in (TRANSFORMER, VAE, CLIP, T5))
    _check_scheduler(folder)
    transformer.integer("num_layers", 19, least=1)  # the first block tells a step cache how much a step changes
    latents = vae.integer("latent_channels", 16, least=1)
    for section, key, default, wanted, whose in (
        (transformer, "patch_size", 1, 1, "FLUX.1"),
        (transformer, "in_channels", 64, latents * PATCH**2, VAE),
        (transformer, "joint_attention_dim", 4096, t5.integer("d_model", least=1), T5),
        (transformer, "pooled_projection_dim", 768, clip.integer("hidden_size", least=1), CLIP),
    ):
        section.same(key, default, wanted, whose)
    vae.number("scaling_factor", 0.18215)
    levels = vae.values.get("block_out_channels")
    if not isinstance(levels, list) or not levels:
        raise vae.wrong("block_out_channels", levels, "a list of integers, one for each level")
    return FluxSettings(
        guided=transformer.values.get("guidance_embeds") is True,
        scale=1 << (len(levels) - 1),
        latents=latents,
        clip_tokens=clip.integer("max_position_embeddings", 77, least=2),
        clip_vocab=clip.integer("vocab_size", least=1),
        t5_vocab=t5.integer("vocab_size", least=1),
    )


def _check_classes(folder: Path) -> None:
    """A part of another class may be loaded as ours, and draw something."""
    index = Section(read_json(folder, INDEX), f"{folder / INDEX}")
    for part, wanted in CLASSES.items():
        if index.values.get(part) != list(wanted):
            raise index.wrong(part, index.values.get(part), f"{list(wanted)}")


def _check_scheduler(folder: Path) -> None:
    """Any schedule of Euler's way from noise to a picture will do."""
    name = "scheduler_config.json"
    own = Section(read_json(folder / SCHEDULER, name), f"{folder / SCHEDULER / name}")
    own.word("_class_name", EULER, (EULER,))
    for key in ("invert_sigmas", "stochastic_sampling"):
        if own.values.get(key):
            raise own.wrong(key, own.values[key], "false")


def _section(folder: Path, part: str) -> Section:
    return Section(read_json(folder / part, CONFIG), f"{folder / part / CONFIG}")
