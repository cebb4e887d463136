"""The official client against the three models as they are served, through HTTP and the engine and back. Pictures that are to be
changed are read at small areas.

Faults pinned: a picture that changes on its way to the client; a file of a form that does not reach the model; a refusal of the
model that reads as a failure of the server; a client that leaves while its picture is drawn on.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import numpy as np
import openai
import pytest

from omnistage.engine.async_omni_engine import AsyncOmniEngine
from omnistage.engine.compose import composed
from omnistage.models.qwen_image import edit_processor, references
from omnistage.serve.pictures import PNG, encoded
from omnistage.serve.serving import Serving
from tests.models.easel import Easel
from tests.models.qwen_image.drawing import Asked
from tests.models.qwen_image.editing import AREA, SMALL_PLUS
from tests.runtime.harness import eventually
from tests.serve.files import opened, picture_file
from tests.serve.live import live
from tests.tiny.qwen_image import write_qwen_image

ASK = {"steps": 3, "guidance_scale": 1.0}


@dataclass
class Served:
    engine: AsyncOmniEngine
    address: str
    client: Any


@contextmanager
def served_from(folder: Path) -> Iterator[Served]:
    with (
        closing(Closed(str(folder))) as made,
        live(Serving(made.engine, int(time.time()))) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=30) as client,
    ):
        yield Served(made.engine, address, client)


@pytest.fixture(scope="module")
def drawing(folder: Path) -> Iterator[Served]:
    """Qwen-Image, which reads texts alone."""
    with served_from(folder) as made:
        yield made


@pytest.fixture(scope="module")
def editing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Qwen-Image-Edit, which changes one picture."""
    folder = write_qwen_image(tmp_path_factory.mktemp("edit"), "QwenImageEditPipeline")
    with patch.object(references, "REFERENCE_AREA", AREA), served_from(folder) as made:
        yield made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Qwen-Image-Edit-Plus, which changes one picture or several."""
    folder = write_qwen_image(tmp_path_factory.mktemp("edit_plus"), "QwenImageEditPlusPipeline")
    with (
        patch.object(references, "REFERENCE_AREA", AREA),
        patch.object(edit_processor, "EDIT_PLUS", SMALL_PLUS),
        served_from(folder) as made,
    ):
        yield made


class Closed:
    """An engine whose stage runs in this process, where its areas are small."""

    def __init__(self, folder: str) -> None:
        model, self._runtime = composed(folder, overrides={"inline": True, "processor_workers": 0})
        self.engine = AsyncOmniEngine(model, self._runtime)
        self.engine.start()
        assert self._runtime.wait_ready(60).state == "ready"

    def close(self) -> None:
        self._runtime.close(0.0)


def file_of(picture: np.ndarray) -> bytes:
    return encoded(picture, PNG)


def pixels(text: str | None) -> np.ndarray:
    assert text is not None
    return np.asarray(opened(base64.b64decode(text)).convert("RGB")).astype(int)


def edited(served: Served, *, image: object, seed: int = 3, size: str = "64x48", **more: object) -> np.ndarray:
    reply = served.client.images.edit(image=image, prompt="a dog", size=size, extra_body={**ASK, "seed": seed}, **more)
    [one] = reply.data
    return pixels(one.b64_json)


def test_drawn_whole_and_in_a_stream(drawing: Served, easel: Easel) -> None:
    """Fault: a prompt, a size, guidance or a seed that does not reach the model; a stream that ends with another picture."""
    asks = [Asked(seed=seed, height=32, width=48, scale=2.0, negative="a dog") for seed in (7, 8)]
    wanted = [one.picture.astype(int) for one in easel.draw(asks) if one is not None]
    ask = {"prompt": "a cat", "n": 2, "size": "48x32"}
    extra = {"seed": 7, "steps": 4, "true_cfg_scale": 2.0, "negative_prompt": "a dog"}
    reply = drawing.client.images.generate(**ask, extra_body=extra)
    told = list(drawing.client.images.generate(**ask, stream=True, partial_images=2, extra_body=extra))
    whole = {event.index: event for event in told if event.type == "image_generation.completed"}
    partial = [event for event in told if event.type == "image_generation.partial_image"]
    assert sorted((event.index, event.partial_image_index) for event in partial) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(told) == 6 and told[-1].usage is not None and reply.size == whole[0].size == "48x32"
    for index, picture in enumerate(wanted):
        assert np.abs(pixels(reply.data[index].b64_json) - picture).max() <= 1
        assert np.abs(pixels(whole[index].b64_json) - picture).max() <= 1
    assert np.abs(wanted[0] - wanted[1]).max() > 1
    assert all(np.abs(pixels(event.b64_json) - wanted[event.index]).max() > 1 for event in partial)


def test_a_model_that_reads_no_picture_says_so(drawing: Served) -> None:
    """Fault: a picture that is dropped, or a 500."""
    with pytest.raises(openai.BadRequestError) as caught:
        edited(drawing, image=picture_file(32, 24))
    assert caught.value.param == "image" and "reads text only" in str(caught.value)


def test_the_model_of_one_picture(editing: Served) -> None:
    """Fault: its picture makes no difference, or a second one is dropped without a word; a mask is not for it."""
    one, other, mask = picture_file(32, 24), picture_file(24, 24, "JPEG"), picture_file(32, 24, mode="RGBA")
    alone = edited(editing, image=one)
    assert alone.shape == (48, 64, 3)
    free, masked = edited(editing, image=one, size="auto"), edited(editing, image=one, mask=mask, size="auto")
    for was, changed in ((alone, edited(editing, image=other)), (free, masked)):
        assert changed.shape == was.shape and np.abs(was - changed).max() > 1
    ask = {"prompt": "a dog", "size": "64x48", "extra_body": {**ASK, "seed": 3}}
    *partial, whole = editing.client.images.edit(image=one, stream=True, partial_images=2, **ask)
    assert [event.type for event in partial] == ["image_edit.partial_image"] * 2
    assert np.abs(pixels(whole.b64_json) - alone).max() <= 1
    with pytest.raises(openai.BadRequestError) as caught:
        edited(editing, image=[one, other])
    assert caught.value.param == "image" and "'2 pictures' is not accepted; accepted: one" in str(caught.value)


def test_one_picture_and_several(served: Served) -> None:
    """Fault: a second picture makes no difference; the same request gives another picture."""
    one, other = picture_file(32, 24), picture_file(24, 24, "JPEG")
    alone = edited(served, image=one)
    assert alone.shape == (48, 64, 3)
    assert np.abs(alone - edited(served, image=[one])).max() <= 1
    for changed in (edited(served, image=[one, other]), edited(served, image=one, seed=4)):
        assert changed.shape == alone.shape and np.abs(alone - changed).max() > 1


def test_a_mask_keeps_its_picture(served: Served) -> None:
    """Fault: a mask is dropped on its way, or marks the other half."""
    whole = np.full((96, 96, 4), 200, np.uint8)
    whole[..., 3] = 255
    half = whole.copy()
    half[:, :48, 3] = 0
    image, kept, changed = file_of(whole[..., :3]), file_of(whole), file_of(half)
    free = edited(served, image=image, size="auto")
    found = [edited(served, image=image, mask=mask, size="auto") for mask in (kept, changed)]
    away = [[np.abs(one[:, side] - free[:, side]).mean() for side in (slice(0, 24), slice(72, 96))] for one in found]
    assert away[0][0] > 2 * away[1][0] and away[1][1] > 2 * away[1][0], away


def test_a_stream_ends_with_the_picture_that_comes_whole(served: Served) -> None:
    """Fault: partial pictures change the result, or are missing, or of another kind."""
    one = picture_file(32, 24)
    stream = served.client.images.edit(
        image=one,
        prompt="a dog",
        size="64x48",
        stream=True,
        partial_images=2,
        n=2,
        extra_body={**ASK, "seed": 3},
    )
    told = list(stream)
    assert sorted((event.type, event.index) for event in told) == [
        ("image_edit.completed", 0),
        ("image_edit.completed", 1),
        *[("image_edit.partial_image", index) for index in (0, 0, 1, 1)],
    ]
    whole = {event.index: event for event in told if event.type == "image_edit.completed"}
    assert [whole[index].size for index in (0, 1)] == ["64x48"] * 2
    for index in (0, 1):
        assert np.abs(pixels(whole[index].b64_json) - edited(served, image=one, seed=3 + index)).max() <= 1
    assert told[-1].usage is not None


def test_what_the_model_refuses_names_what_was_sent(served: Served) -> None:
    """Fault: 500 for a file that breaks off; a size without what would be legal."""
    cut = picture_file(64, 64, "JPEG")
    for image, size, field, said in (
        (picture_file(32, 24), "700x481", "size", "nearest"),
        (picture_file(32, 24), "16384x16384", "size", "at most"),
        (cut[: len(cut) // 2], "64x48", "image", ""),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            served.client.images.edit(image=image, prompt="a dog", size=size, extra_body=ASK)
        assert caught.value.param == field and said in str(caught.value)


def test_who_leaves_ends_the_drawing(served: Served) -> None:
    """Fault: two hundred steps for nobody."""
    data = {"prompt": "a dog", "size": "64x48", "steps": "200", "stream": "true", "partial_images": "3"}
    with httpx.stream(
        "POST", f"{served.address}/v1/images/edits", data=data, files={"image": picture_file(32, 24)}, timeout=60
    ) as response:
        assert response.status_code == 200
        next(response.iter_lines())
        assert served.engine.status().open_requests == 1
    assert eventually(lambda: served.engine.status().open_requests == 0, 2.0)
    assert edited(served, image=picture_file(32, 24)).shape == (48, 64, 3)
