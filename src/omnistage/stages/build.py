"""From a stage's resolved configuration to its engine and its host.

An engine's kind is reached by dotted name, so that a worker imports the libraries of its own stages only.
"""

from __future__ import annotations

from typing import Any

from omnistage.config.hooks import resolve_hook
from omnistage.config.stage import ARStageConfig, DiffusionStageConfig, GenerationStageConfig, StageConfig
from omnistage.connectors.base import Connectors
from omnistage.stages.base import StageEngine
from omnistage.stages.emitter import Select
from omnistage.stages.host import StageHost

_BUILDERS = {
    ARStageConfig: "omnistage.stages.ar.build:build_ar_engine",
    GenerationStageConfig: "omnistage.stages.generation.build:build_generation_engine",
    DiffusionStageConfig: "omnistage.stages.diffusion.build:build_diffusion_engine",
}


def build_engine(config: StageConfig) -> StageEngine:
    """Loads the stage's model and hooks. Raises ConfigError for a hook that does not resolve."""
    build: Any = resolve_hook(_BUILDERS[type(config)])
    engine: StageEngine = build(config)
    return engine


def load_selects(config: StageConfig) -> dict[int, Select]:
    """The select hook of every outgoing edge that names one, by target."""
    selects: dict[int, Select] = {}
    for edge in config.outputs:
        if edge.select is not None:
            select: Any = resolve_hook(edge.select)
            selects[edge.target] = select
    return selects


def modules_of(config: StageConfig) -> list[str]:
    """Every module that this one imports for the stage; a loader may import more."""
    hooks = (_BUILDERS[type(config)], config.loader, config.processor, config.bridge)
    selects = (edge.select for edge in config.outputs)
    return [hook.partition(":")[0] for hook in (*hooks, *selects) if hook is not None]


def build_host(config: StageConfig, connectors: Connectors) -> StageHost:
    """A stage ready to be driven from one thread."""
    selects = load_selects(config)
    return StageHost(config, build_engine(config), connectors, selects)
