"""Writes the references of Qwen3-Omni's preprocessing with transformers' own processors: `make references`.

Runs where torchvision is installed, which transformers needs for videos; the tests, and the package, do without. Pictures go
through the processor that uses Pillow, named explicitly: the other one rounds grey levels in its own way.
"""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.references import torchvision_shim  # isort: split

import transformers
from safetensors.torch import save_file
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths

from tests.references.qwen3_omni_cases import (
    CASES,
    FILMS,
    LENGTHS,
    MEDIA,
    PICTURES,
    PIXELS,
    PROMPTS,
    SAMPLED,
    SOUNDS,
    TOTALS,
    Case,
)
from tests.tiny.qwen3_omni import CHAT_TEMPLATE, PREPROCESSOR, write_qwen3_omni

assert torchvision_shim.LIBRARY is not None, "imported for what its import does"
Tensors = dict[str, torch.Tensor]
_SIZES = {
    "patch_size": PIXELS.patch_size,
    "temporal_patch_size": PIXELS.temporal_patch_size,
    "merge_size": PIXELS.merge_size,
    "size": {"shortest_edge": PIXELS.least, "longest_edge": PIXELS.most},
    "image_mean": list(PIXELS.mean),
    "image_std": list(PIXELS.std),
}
_ASSISTANT_ROWS = 9


def media() -> Tensors:
    made: Tensors = {}
    pictures = transformers.Qwen2VLImageProcessorPil(**_SIZES)
    for name, picture in PICTURES.items():
        read = pictures(picture, input_data_format="channels_last", return_tensors="pt")
        made[f"picture.{name}.grid"] = read["image_grid_thw"][0]
        made[f"picture.{name}.values"] = one_frame(read["pixel_values"])
    videos = transformers.Qwen2VLVideoProcessor(**_SIZES, cap_pixels_per_frame=False)
    for name, film in FILMS.items():
        keep_video(made, f"film.{name}", videos([film], input_data_format="channels_last", return_tensors="pt"))
    film, rate, fps = SAMPLED
    facts = {"fps": rate, "total_num_frames": len(film)}
    read = videos(
        [film],
        input_data_format="channels_last",
        return_tensors="pt",
        do_sample_frames=True,
        fps=fps,
        video_metadata=[facts],
    )
    keep_video(made, "film.sampled", read)
    sounds = transformers.WhisperFeatureExtractor(feature_size=128, return_attention_mask=True, chunk_length=300)
    for name, samples in SOUNDS.items():
        read = sounds([samples], sampling_rate=16_000, padding=True, truncation=False, return_attention_mask=True)
        frames = int(read["attention_mask"][0].sum())
        made[f"sound.{name}"] = torch.tensor(np.asarray(read["input_features"][0])[:, :frames])
    made["sound.rows"] = torch.tensor([_get_feat_extract_output_lengths(length) for length in LENGTHS])
    for at, (total, rate) in enumerate(TOTALS):
        made[f"sampling.{at}"] = videos.sample_frames(
            transformers.video_utils.VideoMetadata(total_num_frames=total, fps=rate), fps=2.0
        )
    return made


def one_frame(values: torch.Tensor) -> torch.Tensor:
    """A picture's patches without the copy that stands for a second frame."""
    cut = values.reshape(len(values), 3, PIXELS.temporal_patch_size, -1)
    assert torch.equal(cut[:, :, 0], cut[:, :, 1])
    return cut[:, :, 0].contiguous()


def keep_video(made: Tensors, name: str, read: Any) -> None:
    """Whole grey levels: a video is compared to the nearest one."""
    made[f"{name}.grid"] = read["video_grid_thw"][0]
    values = read["pixel_values_videos"].reshape(-1, 3, PIXELS.temporal_patch_size * PIXELS.patch_size**2)
    mean, std = torch.tensor(PIXELS.mean)[:, None], torch.tensor(PIXELS.std)[:, None]
    made[f"{name}.greys"] = ((values * std + mean) * 255).round().to(torch.uint8)


def prompts(folder: Path) -> Tensors:
    processor = processor_of(folder)
    model = transformers.Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder).eval()
    model.talker.config.audio_config = model.thinker.config.audio_config  # which it lacks, and asks for
    made: Tensors = {}
    for name, case in CASES.items():
        keep_prompt(made, name, case, processor, model)
    return made


def processor_of(folder: Path) -> Any:
    own = {
        key: PREPROCESSOR[key] for key in ("patch_size", "temporal_patch_size", "merge_size", "image_mean", "image_std")
    }
    size = {"shortest_edge": PREPROCESSOR["min_pixels"], "longest_edge": PREPROCESSOR["max_pixels"]}
    return transformers.Qwen3OmniMoeProcessor(
        image_processor=transformers.Qwen2VLImageProcessorPil(**own, size=size),
        video_processor=transformers.Qwen2VLVideoProcessor(**own, cap_pixels_per_frame=False),
        feature_extractor=transformers.WhisperFeatureExtractor.from_pretrained(folder),
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
        chat_template=CHAT_TEMPLATE,
    )


def keep_prompt(made: Tensors, name: str, case: Case, processor: Any, model: Any) -> None:
    read = processor(**arguments(case, processor), return_tensors="pt")
    ids, mask = read["input_ids"], read["attention_mask"]
    heard = read["feature_attention_mask"].sum(-1) if "feature_attention_mask" in read else None
    grids = (read.get("image_grid_thw"), read.get("video_grid_thw"))
    seconds = read.get("video_second_per_grid")
    seconds = None if seconds is None else torch.as_tensor(seconds)
    position, delta = model.thinker.get_rope_index(ids, *grids, mask, case.with_sound, heard, seconds)
    made[f"{name}.ids"] = ids[0]
    made[f"{name}.positions"] = whole(position[:, 0])
    made[f"{name}.next"] = (delta[0] + ids.shape[1]).long()
    said = user_ids(ids[0], model.config)
    asked = torch.cat([said, torch.full((_ASSISTANT_ROWS,), model.config.tts_pad_token_id)])[None]
    # generate() does not tell the talker that videos have sound.
    position, delta = model.talker.get_rope_index(asked, *grids, torch.ones_like(asked), False, heard, seconds)
    made[f"{name}.talker_ids"] = said
    made[f"{name}.talker_positions"] = whole(position[:, 0])
    made[f"{name}.talker_next"] = (delta[0] + asked.shape[1]).long()


def whole(positions: torch.Tensor) -> torch.Tensor:
    assert torch.equal(positions, positions.round())
    return positions.int().contiguous()


def arguments(case: Case, processor: Any) -> dict[str, Any]:
    messages = []
    for role, content in case.turns:
        parts = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": kind_of(part)} for part in content
        ]
        messages.append({"role": role, "content": parts})
    given: dict[str, Any] = {
        "text": [processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)]
    }
    items = case.parts()
    videos = [part for part in items if kind_of(part) == "video"]
    given["images"] = [part[1] for part in items if kind_of(part) == "image"] or None
    given["videos"] = [part[1] for part in videos] or None
    sounding = [part for part in items if part[0] in ("audio", "spoken")]
    given["audio"] = [part[-1] for part in sounding] or None
    if case.with_sound:
        at = {id(part): index for index, part in enumerate(videos)}
        given["audio_from_video_indices"] = [at.get(id(part)) for part in sounding]
        given["load_audio_from_video"] = True
    if case.fps is not None:
        given["fps"] = case.fps
    return given


def kind_of(part: Any) -> str:
    return "video" if part[0] == "spoken" else str(part[0])


def user_ids(ids: torch.Tensor, config: Any) -> torch.Tensor:
    begins = [*(ids == config.im_start_token_id).nonzero().flatten().tolist(), len(ids)]
    turns = [ids[start:end] for start, end in pairwise(begins)]
    return torch.cat([turn for turn in turns if turn[1] == config.user_token_id])


def main() -> None:
    torch.set_num_threads(1)
    MEDIA.parent.mkdir(exist_ok=True)
    save_file(media(), MEDIA)
    with tempfile.TemporaryDirectory() as folder:
        save_file(prompts(write_qwen3_omni(Path(folder))), PROMPTS)


if __name__ == "__main__":
    main()
