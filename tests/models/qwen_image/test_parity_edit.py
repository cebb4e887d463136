"""Changed pictures are those of diffusers' edit pipelines, alone and among others: latents to 1e-5, pixels to one grey level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omnistage import DiffusionParams, Omni
from omnistage.models.qwen_image.edit_processor import load_edit_plus_processor, load_edit_processor
from omnistage.models.qwen_image.loader import load_edit
from tests.models.easel import Easel, assert_same, stage_config
from tests.models.qwen_image.drawing import Asked
from tests.models.qwen_image.editing import SMALL_PLUS, edit_pipeline, edited_by_diffusers, photograph, small_areas
from tests.tiny.qwen_image import write_qwen_image

WIDE, TALL, SQUARE = photograph(60, 100), photograph(130, 70, 1), photograph(80, 80, 2)


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    with small_areas():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """References of the second edition stand still."""
    return write_qwen_image(tmp_path_factory.mktemp("edit"), "QwenImageEditPlusPipeline", zero_cond_t=True)


@pytest.fixture(scope="module")
def edit_easel(folder: Path) -> Easel:
    return Easel(load_edit(stage_config(folder)), load_edit_processor(stage_config(folder)))


@pytest.fixture(scope="module")
def plus_easel(folder: Path, edit_easel: Easel) -> Easel:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("omnistage.models.qwen_image.edit_processor.EDIT_PLUS", SMALL_PLUS)
        return Easel(edit_easel.model, load_edit_plus_processor(stage_config(folder)))


def test_one_picture(folder: Path, edit_easel: Easel) -> None:
    """Fault: a picture is resized, seen, placed or attended to otherwise; a neighbour's picture is changed."""
    pipeline = edit_pipeline(folder, "QwenImageEditPipeline")
    asks = (
        Asked(prompt="a red cat", pictures=(WIDE,), height=None, width=None),
        Asked(prompt="two dogs", pictures=(WIDE,), height=None, width=None, steps=3, seed=2, scale=3.0, negative=" "),
        Asked(prompt="a", pictures=(SQUARE,), height=64, width=96, steps=2, seed=3, joins=1),
        Asked(
            prompt="text",
            pictures=(TALL,),
            height=None,
            width=None,
            steps=5,
            seed=4,
            scale=4.0,
            negative="red",
            joins=1,
        ),
    )
    for asked, ours in zip(asks, edit_easel.draw(asks), strict=True):
        assert_same(ours, edited_by_diffusers(pipeline, asked))


def test_several_pictures(folder: Path, plus_easel: Easel) -> None:
    """Fault: the pictures of a request change places, or one is seen at the other's size."""
    pipeline = edit_pipeline(folder, "QwenImageEditPlusPipeline")
    asks = (
        Asked(prompt="a cat and a dog", pictures=(TALL, WIDE), height=None, width=None, scale=2.0, negative=" "),
        Asked(prompt="size", pictures=(SQUARE,), height=96, width=96, seed=2, steps=3),
        Asked(prompt="objects", pictures=(SQUARE, WIDE, TALL), height=64, width=64, seed=3, steps=2, joins=1),
    )
    for asked, ours in zip(asks, plus_easel.draw(asks), strict=True):
        assert_same(ours, edited_by_diffusers(pipeline, asked))


def test_a_mask_keeps_the_rest(folder: Path, edit_easel: Easel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: what is opaque is drawn, or the noise that the rest of the picture gets is another one. Diffusers draws the latents of
    the picture in this pipeline alone; here they are the middle of what is likely, as in all others."""
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_inpaint

    plainly = partial(pipeline_qwenimage_edit_inpaint.retrieve_latents, sample_mode="argmax")
    monkeypatch.setattr(pipeline_qwenimage_edit_inpaint, "retrieve_latents", plainly)
    mask = np.full((60, 100, 4), 255, np.uint8)
    mask[10:40, 20:70, 3] = 0
    white = Image.fromarray(255 - mask[:, :, 3])
    pipeline = edit_pipeline(folder, "QwenImageEditInpaintPipeline")
    asked = Asked(prompt="a red cat", pictures=(WIDE,), mask=mask, height=None, width=None, scale=3.0, negative=" ")
    plain = replace(asked, mask=None, seed=1)
    masked, whole = edit_easel.draw([asked, plain])
    assert_same(masked, edited_by_diffusers(pipeline, asked, mask_image=white, strength=1.0))
    assert masked is not None and whole is not None
    kept = np.abs(masked.picture[:8].astype(int) - whole.picture[:8]).mean()
    assert kept > 5  # of the plain one nothing is kept


def test_conditions_together_and_alone(plus_easel: Easel) -> None:
    """Fault: what one request shows is seen by another."""
    asks = (Asked(pictures=(SQUARE, WIDE), scale=2.0), Asked(pictures=(TALL,), prompt="a long wish about two dogs"))
    conditions = [condition for asked in asks for condition in plus_easel.plan(asked).conditions]
    together = plus_easel.model.encode(conditions)
    for condition, found in zip(conditions, together, strict=True):
        (alone,) = plus_easel.model.encode([condition])
        assert alone.keys() == found.keys()
        assert all(np.allclose(alone[name], found[name], atol=1e-5) for name in alone)
    assert len({condition.key for condition in conditions}) == 3
    assert plus_easel.plan(asks[0]).conditions[0].key == plus_easel.plan(asks[0]).conditions[0].key
    other: Any = replace(asks[0], pictures=(WIDE, SQUARE))
    assert plus_easel.plan(asks[0]).conditions[0].key != plus_easel.plan(other).conditions[0].key


def test_through_the_engine(folder: Path, edit_easel: Easel) -> None:
    """Fault: a picture or a mask is lost between a prompt and the stage; the folder is served without its pictures."""
    mask = np.full((60, 100, 4), 255, np.uint8)
    mask[10:40, 20:70, 3] = 0
    asked = Asked(prompt="a red cat", pictures=(WIDE,), height=None, width=None, steps=3)
    told = DiffusionParams(num_inference_steps=3, true_cfg_scale=1.0, seed=1)
    plain, masked = edit_easel.draw([asked, replace(asked, mask=mask)])
    with Omni(str(folder), inline=True, processor_workers=0, pipeline="qwen_image_edit") as omni:
        for media, expected in (({"image": WIDE}, plain), ({"image": WIDE, "mask": mask}, masked)):
            prompt = {"prompt": asked.prompt, "multi_modal_data": media}
            (output,) = omni.generate(prompt, told, use_tqdm=False)
            assert output.error is None and expected is not None
            (found,) = output.images
            assert int(np.abs(found.astype(int) - expected.picture.astype(int)).max()) <= 1
