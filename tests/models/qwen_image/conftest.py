"""Tiny checkpoints and what draws with them, made once a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omnistage.models.qwen_image.loader import load
from omnistage.models.qwen_image.processor import load_processor
from tests.models.easel import Easel, stage_config
from tests.tiny.qwen_image import write_qwen_image


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen_image(tmp_path_factory.mktemp("qwen_image"))


@pytest.fixture(scope="session")
def easel(folder: Path) -> Easel:
    return Easel(load(stage_config(folder)), load_processor(stage_config(folder)))


@pytest.fixture(scope="session")
def pipeline(folder: Path) -> Any:
    """That of diffusers."""
    from diffusers import QwenImagePipeline

    made = QwenImagePipeline.from_pretrained(folder)
    made.set_progress_bar_config(disable=True)
    return made
