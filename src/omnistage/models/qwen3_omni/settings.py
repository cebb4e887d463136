"""What config.json and the files of the preprocessing say, as values. Every fault is one line that names the file and the key
(BrokenCheckpointError). Knows no torch: processes that prepare prompts read this too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.folder import CONFIG, Section, read_json, read_json_if_any
from omnistage.modeling.patches import PatchSizes, Pixels, pixel_bounds, pixels_of

_AUDIO_END = "<|audio_end|>"
_NESTED = "processor_config.json"
_VIDEO = "video_preprocessor_config.json"
_SHARED = "preprocessor_config.json"


def read_config(folder: Path) -> Section:
    """config.json of a Qwen3-Omni folder."""
    return Section(read_json(folder, CONFIG), f"{folder / CONFIG}")


@dataclass(frozen=True, slots=True)
class PromptIds:
    """Token ids that the structure of a prompt is made of. `image`, `audio` and `video` stand for one row of media each."""

    image: int
    audio: int
    video: int
    vision_start: int
    audio_start: int
    audio_end: int
    im_start: int
    user: int


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """`positions_per_second` of rotary time, `audio_window` half of the frames that the audio
    encoder reads at once, `merge_size` the patches on one side of a row's square. `speaks`: there is a talker."""

    ids: PromptIds
    positions_per_second: float
    audio_window: int
    mel_bands: int
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    speaks: bool


def thinker_vocab_size(config: Section) -> int:
    return config.section("thinker_config").section("text_config").integer("vocab_size", least=1)


def prompt_settings(config: Section, token_id: Callable[[str], int | None]) -> PromptSettings:
    """`token_id` is the tokenizer's, for what only the tokenizer needs to know. Where config.json may be silent, the defaults are
    those of transformers' configuration."""
    thinker = config.section("thinker_config")
    vision, audio = thinker.section("vision_config"), thinker.section("audio_config")
    return PromptSettings(
        ids=PromptIds(
            image=thinker.integer("image_token_id", 151655),
            audio=thinker.integer("audio_token_id"),
            video=thinker.integer("video_token_id", 151656),
            vision_start=thinker.integer("vision_start_token_id"),
            audio_start=thinker.integer("audio_start_token_id"),
            audio_end=thinker.integer("audio_end_token_id", token_id(_AUDIO_END)),
            im_start=config.integer("im_start_token_id", 151644),
            user=config.integer("user_token_id", 872),
        ),
        positions_per_second=thinker.number("position_id_per_seconds"),
        audio_window=audio.integer("n_window", 50, least=1),
        mel_bands=audio.integer("num_mel_bins", 128, least=1),
        patch_size=vision.integer("patch_size", 16, least=1),
        temporal_patch_size=vision.integer("temporal_patch_size", 2, least=1),
        merge_size=vision.integer("spatial_merge_size", 2, least=1),
        speaks=config.values.get("enable_audio_output") is not False and "talker_config" in config.values,
    )


@dataclass(frozen=True, slots=True)
class VideoSampling:
    """Of a video with known times `fps` frames per second are read, but at least `least` and at most `most` of them."""

    fps: float
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Sound:
    """How sound becomes log-mel features: `sampling_rate` in Hz, `hop_length` and `n_fft` in samples."""

    mel_bands: int
    sampling_rate: int
    hop_length: int
    n_fft: int


@dataclass(frozen=True, slots=True)
class MediaSettings:
    """All that the folder says about media."""

    image: Pixels
    video: Pixels
    sampling: VideoSampling
    sound: Sound


_VIDEO_ROW_PIXELS = 32 * 32
_VIDEO_LEAST, _VIDEO_MOST = 128 * _VIDEO_ROW_PIXELS, 768 * _VIDEO_ROW_PIXELS
"""Pixels of a frame. They belong to the model's processor, which overrules what the folder's video settings say."""


def media_settings(folder: Path, prompt: PromptSettings) -> MediaSettings:
    """From preprocessor_config.json, as published, or the nested processor_config.json of later transformers. The sizes of patches
    must be those that the vision encoder has."""
    nested = Section(read_json_if_any(folder, _NESTED) or {}, f"{folder / _NESTED}")
    shared = Section(read_json_if_any(folder, _SHARED) or {}, f"{folder / _SHARED}")
    own = read_json_if_any(folder, _VIDEO)
    if not nested.values and not shared.values:
        raise BrokenCheckpointError(f"{folder} has neither {_SHARED} nor {_NESTED}; looked for how media are read")
    image = nested.section("image_processor") if "image_processor" in nested.values else shared
    sound = nested.section("feature_extractor") if "feature_extractor" in nested.values else shared
    video = Section(own, f"{folder / _VIDEO}") if own is not None else shared
    video = nested.section("video_processor") if "video_processor" in nested.values else video
    sizes = PatchSizes(prompt.patch_size, prompt.temporal_patch_size, prompt.merge_size)
    return MediaSettings(
        image=pixels_of(image, sizes, *pixel_bounds(image)),
        video=pixels_of(video, sizes, _VIDEO_LEAST, _VIDEO_MOST),
        sampling=VideoSampling(fps=2.0, least=video.integer("min_frames", 4), most=video.integer("max_frames", 768)),
        sound=Sound(
            mel_bands=sound.same("feature_size", 80, prompt.mel_bands, "the audio encoder"),
            sampling_rate=sound.integer("sampling_rate", 16_000, least=1),
            hop_length=sound.integer("hop_length", 160, least=1),
            n_fft=sound.integer("n_fft", 400, least=2),
        ),
    )


@dataclass(frozen=True, slots=True)
class VisionSettings:
    """The encoder of pictures and videos. A patch is [colours, frames, height, width] of values, `patch_shape`, and becomes `width`
    numbers; merge_size x merge_size patches make a row of `rows_width`. There are `side` x `side` learnt positions. What the layers
    `deepstack` make becomes rows too."""

    num_layers: int
    width: int
    inner: int
    heads: int
    activation: str
    patch_shape: tuple[int, int, int, int]
    merge_size: int
    rows_width: int
    side: int
    deepstack: tuple[int, ...]
    rope_theta: float


@dataclass(frozen=True, slots=True)
class AudioSettings:
    """The encoder of sound: of features of `bands`, `chunk_frames` at a time, convolutions of `channels` make rows of `width`,
    which see those of the `window_chunks` chunks of their window; `rows_width` is what comes out."""

    num_layers: int
    width: int
    inner: int
    heads: int
    activation: str
    bands: int
    channels: int
    chunk_frames: int
    window_chunks: int
    rows_width: int


GELUS = ("gelu", "gelu_pytorch_tanh")
"""What the encoders' MLPs may have between their layers: the exact one, and by tanh."""


def vision_settings(thinker: Section) -> VisionSettings:
    """What is not said is as transformers has it."""
    own = thinker.section("vision_config")
    patch, places = own.integer("patch_size", 16, least=1), own.integer("num_position_embeddings", 2304, least=1)
    if (side := math.isqrt(places)) ** 2 != places:
        raise own.wrong("num_position_embeddings", places, "the square of an integer")
    num_layers, deepstack = own.integer("depth", 27), own.integers("deepstack_visual_indexes", (8, 16, 24), least=0)
    if any(layer >= num_layers for layer in deepstack) or len(set(deepstack)) < len(deepstack):
        raise own.wrong("deepstack_visual_indexes", list(deepstack), f"different integers below depth, {num_layers}")
    return VisionSettings(
        num_layers=num_layers,
        width=own.integer("hidden_size", 1152, least=1),
        inner=own.integer("intermediate_size", 4304, least=1),
        heads=_heads(own, "num_heads", 16, own.integer("hidden_size", 1152), multiple=4),
        activation=own.word("hidden_act", "gelu_pytorch_tanh", GELUS),
        patch_shape=(
            own.integer("in_channels", 3, least=1),
            own.integer("temporal_patch_size", 2, least=1),
            patch,
            patch,
        ),
        merge_size=own.integer("spatial_merge_size", 2, least=1),
        rows_width=own.integer("out_hidden_size", 3584, least=1),
        side=side,
        deepstack=deepstack,
        rope_theta=_rope_theta(own, "axial"),
    )


def audio_settings(thinker: Section) -> AudioSettings:
    """What is not said is as transformers has it."""
    own = thinker.section("audio_config")
    chunk_frames = 2 * own.integer("n_window", 50, least=1)
    return AudioSettings(
        num_layers=own.integer("encoder_layers", 32),
        width=own.integer("d_model", 1280, least=4),
        inner=own.integer("encoder_ffn_dim", 5120, least=1),
        heads=_heads(own, "encoder_attention_heads", 20, own.integer("d_model", 1280), multiple=1),
        activation=own.word("activation_function", "gelu", GELUS),
        bands=own.integer("num_mel_bins", 128, least=1),
        channels=own.integer("downsample_hidden_size", 480, least=1),
        chunk_frames=chunk_frames,
        window_chunks=own.integer("n_window_infer", 800, least=chunk_frames) // chunk_frames,
        rows_width=own.integer("output_dim", 3584, least=1),
    )


def _heads(section: Section, key: str, default: int, width: int, *, multiple: int) -> int:
    """How many heads share `width`, each a multiple of `multiple` wide."""
    heads = section.integer(key, default, least=1)
    if width % (heads * multiple):
        raise section.wrong(key, heads, f"a divisor of {width} that leaves a multiple of {multiple}")
    return heads


@dataclass(frozen=True, slots=True)
class Code2WavSettings:
    """The codec decoder. `groups` codes make a frame; an output of the transformer sees `window` frames, its own among them; each
    of `ratios`, then each of `rates` makes one step of time that many."""

    codebook_size: int
    groups: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    attention_bias: bool
    norm_eps: float
    rope_theta: float
    window: int
    ratios: tuple[int, ...]
    rates: tuple[int, ...]
    decoder_dim: int

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.ratios) * math.prod(self.rates)

    def samples_of(self, frames: int) -> int:
        """How much sound so many frames make: each of `rates` begins one step late."""
        steps = frames * math.prod(self.ratios)
        for rate in self.rates:
            steps = max(0, steps - 1) * rate
        return steps


def code2wav_settings(config: Section) -> Code2WavSettings:
    """What is not said is as transformers has it."""
    own = config.section("code2wav_config")
    hidden, heads = own.integer("hidden_size", 1024, least=1), own.integer("num_attention_heads", 16, least=1)
    if (act := own.values.get("hidden_act", "silu")) != "silu":
        raise own.wrong("hidden_act", act, "silu")
    rates = _rates(own, "upsample_rates", (8, 5, 4, 3))
    decoder_dim = own.integer("decoder_dim", 1536, least=1)
    if decoder_dim % 2 ** len(rates):
        raise own.wrong(
            "decoder_dim", decoder_dim, f"a multiple of {2 ** len(rates)}, halved at each of upsample_rates"
        )
    return Code2WavSettings(
        codebook_size=own.integer("codebook_size", 2048, least=1),
        groups=own.integer("num_quantizers", 16, least=1),
        hidden_size=hidden,
        num_layers=own.integer("num_hidden_layers", 8),
        num_heads=heads,
        num_kv_heads=own.integer("num_key_value_heads", 16, least=1),
        head_dim=own.integer("head_dim", hidden // heads, least=2),
        intermediate_size=own.integer("intermediate_size", 3072, least=1),
        attention_bias=own.values.get("attention_bias", False) is True,
        norm_eps=own.number("rms_norm_eps", 1e-5),
        rope_theta=_rope_theta(own, "default"),
        window=own.integer("sliding_window", 72, least=1),
        ratios=_rates(own, "upsampling_ratios", (2, 2)),
        rates=rates,
        decoder_dim=decoder_dim,
    )


def _rates(section: Section, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
    value = section.values.get(key, default)
    match value:
        case [*items] if items and all(type(item) is int and item > 0 for item in items):
            return tuple(items)
    raise section.wrong(key, value, "a list of integers > 0")


def _rope_theta(section: Section, kind: str) -> float:
    """From `rope_parameters`, or beside the other keys, where folders written by earlier transformers have it. `kind`: how it is
    turned."""
    if section.values.get("rope_parameters") is None:
        return section.number("rope_theta", 10_000.0)
    rope = section.section("rope_parameters")
    rope.word("rope_type", kind, (kind,))
    return rope.number("rope_theta", 10_000.0)
