"""Tiny checkpoints of both kinds and what draws with them, made once a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omnistage.models.flux.loader import load
from omnistage.models.flux.processor import load_processor
from tests.models.easel import Easel, stage_config
from tests.tiny.flux import write_flux


@pytest.fixture(scope="session")
def dev_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its transformer reads a guidance scale; its schedule is shifted by the size of a picture."""
    return write_flux(tmp_path_factory.mktemp("flux_dev"))


@pytest.fixture(scope="session")
def schnell_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_flux(tmp_path_factory.mktemp("flux_schnell"), guided=False, seed=10)


@pytest.fixture(scope="session")
def dev(dev_folder: Path) -> Easel:
    return easel_of(dev_folder)


@pytest.fixture(scope="session")
def schnell(schnell_folder: Path) -> Easel:
    return easel_of(schnell_folder)


@pytest.fixture(scope="session")
def dev_pipeline(dev_folder: Path) -> Any:
    """That of diffusers."""
    return pipeline_of(dev_folder)


@pytest.fixture(scope="session")
def schnell_pipeline(schnell_folder: Path) -> Any:
    return pipeline_of(schnell_folder)


def easel_of(folder: Path) -> Easel:
    return Easel(load(stage_config(folder)), load_processor(stage_config(folder)))


def pipeline_of(folder: Path) -> Any:
    from diffusers import FluxPipeline

    made = FluxPipeline.from_pretrained(folder)
    made.set_progress_bar_config(disable=True)
    return made
