"""A folder is served by what its model_index.json names, and pictures through the whole engine are those of diffusers.

Stages run in this process, which has imported the libraries already.
"""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from omnistage import Omni
from omnistage.config.resolve import resolve_omni_config
from omnistage.engine.async_omni_engine import AsyncOmniEngine
from omnistage.engine.compose import composed
from omnistage.models.registry import REGISTRY
from omnistage.serve.serving import Serving
from tests.models.flux.drawing import MIXED, Asked, by_diffusers
from tests.serve.live import live

STAYING = tuple(asked for asked in MIXED if asked.leaves_at is None)[:4]


@pytest.fixture(scope="module")
def omni(dev_folder: Path) -> Iterator[Omni]:
    with Omni(str(dev_folder), inline=True, processor_workers=0) as made:
        yield made


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server."""
    model, runtime = composed(str(folder), overrides={"inline": True, "processor_workers": 0})
    engine = AsyncOmniEngine(model, runtime)
    try:
        engine.start()
        assert runtime.wait_ready(60).state == "ready"
        with live(Serving(engine, int(time.time()))) as address:
            yield address
    finally:
        runtime.close(0.0)


def assert_near(picture: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    assert picture.shape == expected.shape and picture.dtype == np.uint8
    assert int(np.abs(picture.astype(int) - expected.astype(int)).max()) <= 1


def test_the_index_of_a_folder_decides(schnell_folder: Path) -> None:
    """Fault: the folder is not known, or is served with another family's defaults."""
    resolution = resolve_omni_config(str(schnell_folder), {}, registry=REGISTRY)
    assert resolution.pipeline.model_type == "flux" and resolution.pipeline.reads == ("text",)


def test_many_requests_at_once(omni: Omni, dev_pipeline: Any) -> None:
    """Fault: between the engine's ends pictures, seeds or parameters change places."""
    with ThreadPoolExecutor(len(STAYING)) as threads:
        outputs = threads.map(lambda asked: omni.generate(asked.prompt, asked.params, use_tqdm=False), STAYING)
    for asked, (output,) in zip(STAYING, outputs, strict=True):
        assert_near(output.images[0], by_diffusers(dev_pipeline, asked).picture)


def test_a_picture_over_http(schnell_folder: Path, schnell_pipeline: Any) -> None:
    """Fault: the route does not reach the model, or a refusal reads as a failure of the server."""
    asked = Asked(width=48, steps=None, scale=2.0, negative="snow", seed=5)
    body = {"prompt": asked.prompt, "size": "48x32", "seed": 5, "true_cfg_scale": 2.0, "negative_prompt": "snow"}
    with served(schnell_folder) as address:
        found = httpx.post(f"{address}/v1/images/generations", json=body, timeout=60)
        assert found.status_code == 200, found.text
        picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(found.json()["data"][0]["b64_json"]))))
        assert_near(picture, by_diffusers(schnell_pipeline, replace(asked, steps=4)).picture)
        refused = httpx.post(f"{address}/v1/images/generations", json={"prompt": "a", "size": "40x32"}, timeout=60)
        assert refused.status_code == 400 and "nearest are 32 or 48" in refused.text


def test_pictures_for_a_model_that_reads_none(omni: Omni) -> None:
    """Fault: a picture that is to be changed is dropped without a word."""
    prompt = {"prompt": "a cat", "multi_modal_data": {"image": np.zeros((8, 8, 3), np.uint8)}}
    (output,) = omni.generate(prompt, use_tqdm=False)
    assert output.error is not None and "it reads text only" in output.error.message
