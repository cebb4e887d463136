"""What is asked of pictures before anything is read, and what comes of a request that may be drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from omnistage.core.errors import BrokenCheckpointError, InvalidRequestError
from omnistage.core.request import Prompt
from omnistage.models.qwen_image.edit_processor import load_edit_plus_processor, load_edit_processor
from tests.models.easel import stage_config
from tests.models.qwen_image.drawing import Asked, as_media
from tests.models.qwen_image.editing import photograph, small_areas
from tests.tiny.qwen_image import write_processor

PICTURE = photograph(40, 60)
MASK = np.zeros((40, 60, 4), np.uint8)


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    with small_areas():
        yield


@pytest.fixture(scope="module")
def config(folder: Path) -> Any:
    write_processor(folder)
    return stage_config(folder)


@pytest.mark.parametrize(
    ("asked", "field", "told"),
    [
        (Asked(), "image", "'0 pictures' is not accepted; accepted: one, which is to be changed"),
        (Asked(pictures=(PICTURE,) * 2), "image", "'2 pictures' is not accepted; accepted: one,"),
        (Asked(pictures=(PICTURE,), height=30), "height", "30 is not accepted; accepted: a multiple of 8, the nearest"),
        (Asked(pictures=(PICTURE,), mask=MASK[:5]), "mask", "'60x5 pixels' is not accepted; accepted: 60x40 pixels"),
        (Asked(pictures=(PICTURE,), prompt="<|image_pad|>"), "prompt", "tokens that stand for pictures"),
        (Asked(pictures=(PICTURE,), prompt=" "), "prompt", "accepted: a text that is not blank"),
    ],
)
def test_what_cannot_be_changed(config: Any, asked: Asked, field: str, told: str) -> None:
    """Fault: a request that fails in the middle of its picture, or is drawn as something else."""
    with pytest.raises(InvalidRequestError) as error:
        load_edit_processor(config)(asked.request)
    assert error.value.field == field and told in error.value.message


def test_several_pictures_are_another_pipelines(config: Any) -> None:
    """Fault: as many pictures as somebody likes, each of which takes a million pixels."""
    processor = load_edit_plus_processor(config)
    (made,) = processor(Asked(pictures=(PICTURE, photograph(20, 20)), scale=2.0).request)
    assert {"whole_1", "seen_1", "negative_positions"} <= set(made.data) and "mask" not in made.data
    with pytest.raises(InvalidRequestError, match="'9 pictures' is not accepted; accepted: 1 to 8"):
        processor(Asked(pictures=(PICTURE,) * 9).request)


def test_pictures_of_messages(config: Any) -> None:
    """Fault: a picture of an earlier turn is changed."""
    earlier = {"role": "user", "content": [{"type": "image", "media": 0}, {"type": "text", "text": "look"}]}
    last = {"role": "user", "content": [{"type": "image", "media": 1}, {"type": "text", "text": "a cat"}]}
    media = (as_media(photograph(9, 9, 5)), as_media(PICTURE))
    request = msgspec.structs.replace(Asked().request, prompt=Prompt(messages=(earlier, last), media=media))
    processor = load_edit_processor(config)
    (made,), (expected,) = processor(request), processor(Asked(pictures=(PICTURE,)).request)
    assert np.array_equal(made.data["whole_0"], expected.data["whole_0"])
    assert made.data["positive_key"] == expected.data["positive_key"]


def test_a_folder_that_does_not_say_how_pictures_are_read(tmp_path: Path, folder: Path) -> None:
    """Fault: defaults of another model."""
    import shutil

    shutil.copytree(folder, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("processor"))
    with pytest.raises(BrokenCheckpointError, match=r"has no preprocessor_config\.json"):
        load_edit_processor(stage_config(tmp_path))
