"""A folder is served by what its model_index.json names, and pictures through the whole engine are those of diffusers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnistage import DiffusionParams, Omni
from omnistage.config.resolve import resolve_omni_config
from omnistage.models.registry import REGISTRY
from tests.models.qwen_image.drawing import Asked, by_diffusers
from tests.models.qwen_image.editing import photograph
from tests.models.qwen_image.test_parity import MIXED

STAYING = tuple(asked for asked in MIXED if asked.leaves_at is None)


@pytest.fixture(scope="module")
def omni(folder: Path) -> Iterator[Omni]:
    """In worker processes, as a server would run it."""
    with Omni(str(folder), engine_process=False) as made:
        yield made


def params(asked: Asked) -> DiffusionParams:
    """What is not asked for is not the deploy file's either: it has guidance."""
    return replace(asked, scale=1.0 if asked.scale is None else asked.scale).params


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("QwenImagePipeline", ("text",)),
        ("QwenImageEditPipeline", ("text", "image", "mask")),
        ("QwenImageEditPlusPipeline", ("text", "image", "mask")),
    ],
)
def test_the_index_of_a_folder_decides(tmp_path: Path, name: str, reads: tuple[str, ...]) -> None:
    """Fault: an edit model is served as one that reads no pictures."""
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    (tmp_path / "model_index.json").write_text(f'{{"_class_name": "{name}"}}')
    resolution = resolve_omni_config(str(tmp_path), {}, registry=REGISTRY)
    assert resolution.pipeline.diffusers_class_name == name and resolution.pipeline.reads == reads


def test_loading_imports_neither_diffusers_nor_transformers(folder: Path) -> None:
    """Fault: 130 MiB and four seconds for a module of a library."""
    said = (
        "import sys; from tests.models.easel import stage_config\n"
        "from omnistage.models.qwen_image import loader, edit_processor\n"
        f"loader.load(stage_config({str(folder)!r}))\n"
        "print(sorted({'diffusers', 'transformers', 'torchvision', 'accelerate'} & set(sys.modules)))"
    )
    made = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, timeout=120, check=True)
    assert made.stdout == "[]\n"


def test_many_requests_at_once(omni: Omni, pipeline: Any) -> None:
    """Fault: between the engine's ends pictures, seeds or parameters change places."""
    with ThreadPoolExecutor(len(STAYING)) as threads:
        outputs = threads.map(lambda asked: omni.generate(asked.prompt, params(asked), use_tqdm=False), STAYING)
    for asked, (output,) in zip(STAYING, outputs, strict=True):
        (picture,) = output.images
        expected = by_diffusers(pipeline, asked).picture
        assert picture.shape == expected.shape and picture.dtype == np.uint8
        assert int(np.abs(picture.astype(int) - expected.astype(int)).max()) <= 1


def test_several_pictures_of_a_prompt(omni: Omni, pipeline: Any) -> None:
    """Fault: pictures of one request share a random stream."""
    asked = Asked(scale=2.0, seed=5)
    (output,) = omni.generate(asked.prompt, DiffusionParams(**_told(asked), n=3), use_tqdm=False)
    for index, picture in enumerate(output.images):
        expected = by_diffusers(pipeline, replace(asked, seed=5 + index, negative=" ")).picture
        assert int(np.abs(picture.astype(int) - expected.astype(int)).max()) <= 1
    assert len(output.images) == 3


def test_partial_pictures_change_nothing(omni: Omni) -> None:
    """Fault: a picture that is shown on its way ends as another one."""
    asked = Asked(steps=6)
    plain, _ = omni.generate([asked.prompt] * 2, DiffusionParams(**_told(asked)), use_tqdm=False)
    shown = DiffusionParams(**_told(asked), partial_images=3)
    parts = list(omni.generate(asked.prompt, shown, stream=True, use_tqdm=False))
    partial = [part for part in parts if "partial" in part.multimodal_output.metadata]
    (whole,) = [image for part in parts for image in part.images]
    assert len(partial) == 3 and np.array_equal(whole, plain.images[0])


@pytest.mark.parametrize(
    ("more", "field", "told"),
    [
        ({"height": 30}, "height", "a multiple of 8, the nearest are 24 or 32"),
        ({"height": 16384, "width": 16384}, "width", "at most 4194304 pixels"),
        ({"num_inference_steps": 500}, "num_inference_steps", "at most 200"),
    ],
)
def test_what_cannot_be_drawn(omni: Omni, more: dict[str, Any], field: str, told: str) -> None:
    """Fault: memory is taken for a picture that is refused; an error without the field that is wrong."""
    (output,) = omni.generate("a cat", DiffusionParams(**more), use_tqdm=False)
    assert output.error is not None and output.error.code == "invalid_request"
    assert output.error.field == field and told in output.error.message


def test_pictures_for_a_model_that_reads_none(omni: Omni) -> None:
    """Fault: a picture is dropped without a word."""
    prompt = {"prompt": "a cat", "multi_modal_data": {"image": photograph(8, 8)}}
    (output,) = omni.generate(prompt, use_tqdm=False)
    assert output.error is not None and "image" in output.error.message


def _told(asked: Asked) -> dict[str, Any]:
    """What of it is said of one picture."""
    own = params(asked)
    names = ("height", "width", "num_inference_steps", "true_cfg_scale", "seed")
    return {name: getattr(own, name) for name in names}
