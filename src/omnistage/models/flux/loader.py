"""Loads the diffusion stage of a FLUX.1 folder: modules of diffusers and transformers, each from the folder that model_index.json
names it for. Importing this module costs seconds; it is loaded by name, in the worker."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import CLIPTextModel, T5EncoderModel
from transformers.utils import logging

from omnistage.config.stage import DiffusionStageConfig
from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.checkpoint import weight_files
from omnistage.modeling.diffusers_library import diffusers_class
from omnistage.modeling.folder import DIFFUSERS_WEIGHTS, WEIGHTS
from omnistage.modeling.library_module import in_short, read_module
from omnistage.modeling.progress import tell_bytes
from omnistage.models.flux.model import Flux, Parts
from omnistage.models.flux.settings import CLASSES, CLIP, EULER, SCHEDULER, T5, TRANSFORMER, VAE, flux_settings
from omnistage.models.flux.solver import schedule_of
from omnistage.models.flux.transformer import Transformer


def load(config: DiffusionStageConfig) -> Flux:
    """Raises BrokenCheckpointError, and ConfigError where diffusers is not installed."""
    folder = Path(config.model_path)
    settings = flux_settings(folder)
    logging.disable_progress_bar()  # how far it is, is told below
    modules = dict(_modules(folder, config.dtype))
    return Flux(
        Parts(
            clip=modules[CLIP],
            t5=modules[T5],
            transformer=Transformer(modules[TRANSFORMER]),
            vae=modules[VAE],
            scheduler=_scheduler(folder / SCHEDULER),
            settings=settings,
        )
    )


def _scheduler(folder: Path) -> Any:
    """Tried on the steps and tokens of a picture of 1024x1024: what its file says is not looked at before it is drawn by."""
    try:
        scheduler = diffusers_class(EULER).from_pretrained(folder)
        levels, times = schedule_of(scheduler, 28, 4096)
        if not all(map(math.isfinite, (*levels, *times))):
            raise ValueError("its noise is no number")
    except (ArithmeticError, IndexError, MemoryError, TypeError, ValueError) as error:
        raise BrokenCheckpointError(f"{folder} cannot be used as a {EULER}: {in_short(error)}") from error
    return scheduler


def _modules(folder: Path, dtype: str) -> Iterator[tuple[str, Any]]:
    """The parts that have weights, with the names of their folders."""
    kinds = {
        TRANSFORMER: (diffusers_class(CLASSES[TRANSFORMER][1]), DIFFUSERS_WEIGHTS),
        VAE: (diffusers_class(CLASSES[VAE][1]), DIFFUSERS_WEIGHTS),
        CLIP: (CLIPTextModel, WEIGHTS),
        T5: (T5EncoderModel, WEIGHTS),
    }
    sizes = {
        part: sum(path.stat().st_size for path in weight_files(folder / part, name=file))
        for part, (_, file) in kinds.items()
    }
    done = 0
    for part, (kind, _) in kinds.items():
        yield part, read_module(kind, folder / part, dtype)
        done += sizes[part]
        tell_bytes(done, sum(sizes.values()))
