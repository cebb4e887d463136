"""Tiny checkpoints, what serves them, and the library's own pipelines over the same weights, made once a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from omnistage.config.stage import DiffusionStageConfig
from omnistage.models.diffusers_any.loader import load
from omnistage.models.diffusers_any.model import WholePipeline
from tests.drawing.painter import painter_config
from tests.tiny.diffusers_any import write_stable_diffusion, write_stable_diffusion_3

WRITERS: dict[str, Callable[[Path], Path]] = {
    "StableDiffusionPipeline": write_stable_diffusion,
    "StableDiffusion3Pipeline": write_stable_diffusion_3,
}


@dataclass(frozen=True, slots=True)
class Tiny:
    """A folder, the model that serves it, and the library's pipeline."""

    folder: Path
    model: WholePipeline
    pipeline: Any


def stage_config(folder: Path, **changes: Any) -> DiffusionStageConfig:
    loader = "omnistage.models.diffusers_any.loader:load"
    return painter_config(model_path=str(folder), loader=loader, processor=None, **changes)


@pytest.fixture(scope="session", params=WRITERS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    import diffusers

    folder = WRITERS[request.param](tmp_path_factory.mktemp(request.param))
    left_out = {"text_encoder_3": None, "tokenizer_3": None} if "3" in request.param else {}
    pipeline = diffusers.DiffusionPipeline.from_pretrained(folder, **left_out)
    pipeline.set_progress_bar_config(disable=True)
    return Tiny(folder, load(stage_config(folder)), pipeline)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the one with a U-Net."""
    return write_stable_diffusion(tmp_path_factory.mktemp("folder"))
