"""Builds the engine of a diffusion stage from its resolved configuration: loads the hooks and the model.

Hooks and settings fail here, in the worker's start, with one ConfigError; a loader's own errors pass through.
"""

from __future__ import annotations

from typing import Any

from omnistage.config.hooks import resolve_hook
from omnistage.config.stage import DiffusionStageConfig
from omnistage.core.errors import ConfigError
from omnistage.modeling.diffusion import WholeModel
from omnistage.stages.diffusion.caches.table import step_cache
from omnistage.stages.diffusion.call_engine import CallEngine
from omnistage.stages.diffusion.engine import DiffusionEngine
from omnistage.stages.diffusion.runner import DiffusionRunner


def build_diffusion_engine(config: DiffusionStageConfig) -> DiffusionEngine | CallEngine:
    """A stage with sources needs a `bridge`; an entry stage may have a `processor`, which is left to its helpers if it has some."""
    if config.input_sources and config.bridge is None:
        raise ConfigError.of(f"stage {config.model_stage}: bridge", None, "a hook, because the stage has sources")
    bridge: Any = resolve_hook(config.bridge) if config.bridge is not None else None
    load_processor: Any = (
        resolve_hook(config.processor) if config.processor is not None and not config.processor_workers else None
    )
    load_model: Any = resolve_hook(config.loader)
    processor = load_processor(config) if load_processor is not None else None
    model = load_model(config)
    cache = step_cache(config, model)
    if isinstance(model, WholeModel):
        return CallEngine(config, model, bridge, processor)
    return DiffusionEngine(config, DiffusionRunner(model, cache), bridge, processor)
