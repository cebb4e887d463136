"""What the JSON files of a Qwen-Image folder say, as values. Every fault is one line that names the file and the key
(BrokenCheckpointError), and so is what the published pipelines know and this one does not. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.folder import CONFIG, Section, read_json, read_json_if_any
from omnistage.modeling.patches import PatchSizes, Pixels, pixel_bounds, pixels_of

TRANSFORMER, TEXT_ENCODER, VAE, SCHEDULER, PROCESSOR = "transformer", "text_encoder", "vae", "scheduler", "processor"
"""Folders of a model, named as in model_index.json."""

Grid = tuple[int, int]
"""Tokens of a picture in height and width."""

PATCH = 2
"""Latents on one side of a token."""


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """`channels` of a token that goes in, `out_channels` of one that comes out; `text_size` numbers a row of the text encoder has;
    `rope_axes` numbers of a head that the picture's number, height and width turn. `still_references`: reference pictures are
    modulated as free of noise at every step (`zero_cond_t`)."""

    channels: int
    out_channels: int
    num_layers: int
    num_heads: int
    head_dim: int
    text_size: int
    rope_axes: tuple[int, ...]
    still_references: bool

    @property
    def width(self) -> int:
        return self.num_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class VaeShape:
    """`channels` at each level, from the picture's size down; a level has half the sides of the one before. Latents are normalised
    by `mean` and `std`, one number per channel."""

    channels: tuple[int, ...]
    base: int
    blocks: int
    latent_channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def scale(self) -> int:
        """Pixels on one side of a latent."""
        return 1 << (len(self.channels) - 1)


@dataclass(frozen=True, slots=True)
class TextShape:
    """The decoder of Qwen2.5-VL. `rope_sections`: planes of a head that turn with the temporal position, the height, the width."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    norm_eps: float
    rope_theta: float
    rope_sections: tuple[int, ...]

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, slots=True)
class VisionShape:
    """The vision encoder of Qwen2.5-VL. `merge` patches on a side make a square, `window` squares on a side a window; in
    `full_layers` a patch sees more than its own."""

    width: int
    inner: int
    heads: int
    num_layers: int
    out_width: int
    patch_size: int
    temporal_patch_size: int
    merge: int
    window: int
    full_layers: frozenset[int]

    @property
    def patch_shape(self) -> tuple[int, ...]:
        return 3, self.temporal_patch_size, self.patch_size, self.patch_size


@dataclass(frozen=True, slots=True)
class ScheduleShape:
    """How noise falls from step to step. `is_dynamic`: the schedule is shifted by mu, which grows along a line from `base_shift`
    at `base_tokens` tokens of a picture to `most_shift` at `most_tokens`; otherwise by `shift`. `is_exponential`: by e to the mu.
    `terminal`: the noise before the last step; None where the shift decides."""

    train_steps: int
    is_dynamic: bool
    is_exponential: bool
    shift: float
    base_shift: float
    most_shift: float
    base_tokens: int
    most_tokens: int
    terminal: float | None


@dataclass(frozen=True, slots=True)
class PictureSizes:
    """What a picture's sides must be: multiples of `multiple` pixels, of `only` where a pipeline's `extras` name the sides that its
    model was trained for (`sides: [64]`). `default`: a side where a request gives none."""

    multiple: int
    default: int
    only: tuple[int, ...] | None = None


def transformer_shape(folder: Path) -> TransformerShape:
    own = _section(folder, TRANSFORMER)
    for key in ("guidance_embeds", "use_additional_t_cond", "use_layer3d_rope"):
        _only(own, key, False, "false: pictures in layers and distilled guidance are other pipelines")
    _only(own, "patch_size", PATCH, f"{PATCH}")
    channels = own.integer("in_channels", 64, least=1)
    shape = TransformerShape(
        channels=channels,
        out_channels=PATCH * PATCH * own.integer("out_channels", channels // PATCH**2, least=1),
        num_layers=own.integer("num_layers", 60, least=1),
        num_heads=own.integer("num_attention_heads", 24, least=1),
        head_dim=own.integer("attention_head_dim", 128, least=2),
        text_size=own.integer("joint_attention_dim", 3584, least=1),
        rope_axes=own.integers("axes_dims_rope", (16, 56, 56), least=2),
        still_references=own.values.get("zero_cond_t") is True,
    )
    if len(shape.rope_axes) != 3 or sum(shape.rope_axes) != shape.head_dim or any(axis % 2 for axis in shape.rope_axes):
        raise own.wrong("axes_dims_rope", list(shape.rope_axes), f"three even numbers whose sum is {shape.head_dim}")
    if shape.out_channels != shape.channels:
        raise own.wrong(
            "out_channels", own.values.get("out_channels"), f"{channels // PATCH**2}, as in_channels has it"
        )
    return shape


def vae_shape(folder: Path) -> VaeShape:
    own = _section(folder, VAE)
    _only(own, "input_channels", 3, "3")
    if own.values.get("attn_scales"):
        raise own.wrong("attn_scales", own.values["attn_scales"], "an empty list")
    base, multiples = own.integer("base_dim", 96, least=1), own.integers("dim_mult", (1, 2, 4, 4), least=1)
    steps = own.values.get("temperal_downsample", [None] * (len(multiples) - 1))
    if not isinstance(steps, list) or len(steps) != len(multiples) - 1:
        raise own.wrong("temperal_downsample", steps, f"a list of {len(multiples) - 1}, one less than dim_mult has")
    latent = own.integer("z_dim", 16, least=1)
    return VaeShape(
        channels=tuple(base * multiple for multiple in multiples),
        base=base,
        blocks=own.integer("num_res_blocks", 2, least=1),
        latent_channels=latent,
        mean=own.numbers("latents_mean", (), latent),
        std=own.numbers("latents_std", (), latent),
    )


def text_shape(folder: Path) -> TextShape:
    """Also of folders in which the decoder's keys stand beside those of the vision encoder."""
    whole = _section(folder, TEXT_ENCODER)
    own = whole.section("text_config") if "text_config" in whole.values else whole
    _only(own, "hidden_act", "silu", "silu")
    _only(own, "use_sliding_window", False, "false")
    rope = own.section("rope_parameters" if own.values.get("rope_parameters") else "rope_scaling")
    kind = rope.values.get("rope_type", rope.values.get("type"))
    if kind not in ("default", "mrope"):
        raise rope.wrong("rope_type", kind, "default")
    heads = own.integer("num_attention_heads", least=1)
    return TextShape(
        vocab_size=own.integer("vocab_size", least=1),
        hidden_size=own.integer("hidden_size", least=1),
        intermediate_size=own.integer("intermediate_size", least=1),
        num_layers=own.integer("num_hidden_layers", least=1),
        num_heads=heads,
        num_kv_heads=own.integer("num_key_value_heads", heads, least=1),
        norm_eps=own.number("rms_norm_eps", 1e-6),
        rope_theta=rope.number("rope_theta", own.number("rope_theta", 1_000_000.0)),
        rope_sections=rope.integers("mrope_section", (16, 24, 24), least=0),
    )


def vision_shape(folder: Path) -> VisionShape:
    own = _section(folder, TEXT_ENCODER).section("vision_config")
    _only(own, "hidden_act", "silu", "silu")
    _only(own, "in_channels", 3, "3")
    layers, patch, merge = (
        own.integer("depth", 32, least=1),
        own.integer("patch_size", 14),
        own.integer("spatial_merge_size", 2),
    )
    window = own.integer("window_size", 112) // (merge * patch)
    return VisionShape(
        width=own.integer("hidden_size", 3584, least=1),
        inner=own.integer("intermediate_size", 3420, least=1),
        heads=own.integer("num_heads", 16, least=1),
        num_layers=layers,
        out_width=own.integer("out_hidden_size", 3584, least=1),
        patch_size=patch,
        temporal_patch_size=own.integer("temporal_patch_size", 2, least=1),
        merge=merge,
        window=max(1, window),
        full_layers=frozenset(own.integers("fullatt_block_indexes", (7, 15, 23, 31), least=0)),
    )


def picture_pixels(folder: Path, vision: VisionShape) -> Pixels:
    """How pictures become patches, from the folder `processor` as it was published or as later transformers write it."""
    path = folder / PROCESSOR
    nested, shared = (
        read_json_if_any(path, "processor_config.json") or {},
        read_json_if_any(path, "preprocessor_config.json"),
    )
    own = Section(nested.get("image_processor") or shared or {}, f"{path}")
    if not own.values:
        raise BrokenCheckpointError(f"{path} has no preprocessor_config.json; looked for how pictures are read")
    sizes = PatchSizes(vision.patch_size, vision.temporal_patch_size, vision.merge)
    return pixels_of(own, sizes, *pixel_bounds(own))


def picture_token(folder: Path) -> int:
    """The token that stands for a row of a picture in a prompt."""
    return _section(folder, TEXT_ENCODER).integer("image_token_id", 151655)


def schedule_shape(folder: Path) -> ScheduleShape:
    path = folder / SCHEDULER
    own = Section(read_json(path, "scheduler_config.json"), f"{path / 'scheduler_config.json'}")
    _only(own, "_class_name", "FlowMatchEulerDiscreteScheduler", "FlowMatchEulerDiscreteScheduler")
    for key in (
        "invert_sigmas",
        "stochastic_sampling",
        "use_beta_sigmas",
        "use_exponential_sigmas",
        "use_karras_sigmas",
    ):
        _only(own, key, False, "false")
    shape = own.values.get("time_shift_type", "exponential")
    if shape not in ("exponential", "linear"):
        raise own.wrong("time_shift_type", shape, "exponential or linear")
    return ScheduleShape(
        train_steps=own.integer("num_train_timesteps", 1000, least=1),
        is_dynamic=own.values.get("use_dynamic_shifting", False) is True,
        is_exponential=shape == "exponential",
        shift=own.number("shift", 1.0),
        base_shift=_real(own, "base_shift", 0.5),
        most_shift=_real(own, "max_shift", 1.15),
        base_tokens=own.integer("base_image_seq_len", 256, least=1),
        most_tokens=own.integer("max_image_seq_len", 4096, least=1),
        terminal=own.number("shift_terminal") if own.values.get("shift_terminal") else None,
    )


def picture_sizes(vae: VaeShape, extras: Mapping[str, Any]) -> PictureSizes:
    """A side is 128 latents where nobody says otherwise, as in the published pipelines."""
    only = Section(extras, "extras").integers("sides", (), least=1) if "sides" in extras else None
    return PictureSizes(multiple=vae.scale * PATCH, default=only[0] if only else vae.scale * 128, only=only)


def _section(folder: Path, component: str) -> Section:
    return Section(read_json(folder / component, CONFIG), f"{folder / component / CONFIG}")


def _only(section: Section, key: str, value: object, accepted: str) -> None:
    """What is not said is as wanted."""
    found = section.values.get(key, value)
    if found != value:
        raise section.wrong(key, found, accepted)


def _real(section: Section, key: str, default: float) -> float:
    """A number of any sign."""
    value = section.values.get(key, default)
    if type(value) not in (int, float):
        raise section.wrong(key, value, "a number")
    return float(value)


def check_fit(transformer: TransformerShape, vae: VaeShape, text: TextShape, folder: Path) -> None:
    """The parts of a folder belong together."""
    if transformer.channels != vae.latent_channels * PATCH**2:
        told = f"in_channels {transformer.channels}, {VAE} has z_dim {vae.latent_channels}"
        raise BrokenCheckpointError(f"{folder}: {TRANSFORMER} has {told}; a token is {PATCH}x{PATCH} latents")
    if transformer.text_size != text.hidden_size:
        told = f"joint_attention_dim {transformer.text_size}, {TEXT_ENCODER} has hidden_size {text.hidden_size}"
        raise BrokenCheckpointError(f"{folder}: {TRANSFORMER} has {told}; they are one number")
