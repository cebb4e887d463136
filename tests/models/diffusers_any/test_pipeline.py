"""A folder that no family claims falls to its own pipeline, and pictures come all the way from Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnistage import DiffusionParams, Omni
from omnistage.config.resolve import resolve_omni_config
from omnistage.core.errors import ConfigError, StageUnavailableError
from omnistage.models.registry import REGISTRY
from tests.models.diffusers_any.conftest import Tiny
from tests.models.diffusers_any.test_model import assert_same, by_diffusers


@pytest.mark.parametrize(
    ("name", "model_type"),
    [("StableDiffusionXLPipeline", "diffusers_any"), ("QwenImagePipeline", "qwen_image")],
)
def test_what_a_family_claims_stays_with_it(tmp_path: Path, name: str, model_type: str) -> None:
    """Fault: a model of a family is called as a whole, step by step being better; or one of none is not served."""
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": name}))
    resolution = resolve_omni_config(str(tmp_path), {}, registry=REGISTRY)
    assert resolution.pipeline.model_type == model_type
    assert resolution.stages[0].processor_workers == (0 if model_type == "diffusers_any" else 1)


def test_pictures_from_python(tiny: Tiny) -> None:
    """Fault: between the engine's ends pictures, seeds or parameters change places, progress is lost, or a chat draws nothing."""
    asks: list[tuple[str, dict[str, Any]]] = [
        ("a cat", {"seed": 3, "n": 2}),
        ("a dog", {"seed": 9, "height": 40, "width": 24}),
    ]
    with Omni(str(tiny.folder), inline=True) as omni:
        for text, more in asks:
            params = DiffusionParams(num_inference_steps=4, **more)
            (output,) = omni.generate(text, params, use_tqdm=False)
            assert output.error is None
            sizes = {name: more[name] for name in ("height", "width") if name in more}
            for index, picture in enumerate(output.images):
                assert_same(picture, by_diffusers(tiny, text, more["seed"] + index, **sizes))
            assert output.metrics["usage"][0]["images"] == len(output.images) == more.get("n", 1)
        parts = list(omni.generate(_chat("a cat"), DiffusionParams(num_inference_steps=4, seed=3), stream=True))
        told = [part.multimodal_output.metadata["progress"]["step"] for part in parts if _is_progress(part)]
        (picture,) = [image for part in parts for image in part.images]
        assert told == [1, 2, 3, 4] and np.array_equal(picture, omni.generate("a cat", _seeded(3))[0].images[0])
        (refused,) = omni.generate("a cat", DiffusionParams(num_inference_steps=201), use_tqdm=False)
        assert refused.error is not None and refused.error.field == "num_inference_steps"


def test_without_the_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: who has not installed it reads a traceback and not what to install."""
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises((StageUnavailableError, ConfigError), match=r"pip install 'omnistage\[diffusers\]'"):
        Omni(str(folder), inline=True)


def _chat(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _seeded(seed: int) -> DiffusionParams:
    return DiffusionParams(num_inference_steps=4, seed=seed)


def _is_progress(part: Any) -> bool:
    return "progress" in part.multimodal_output.metadata
