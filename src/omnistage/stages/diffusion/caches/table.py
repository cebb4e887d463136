"""The step caches there are, by their names in `cache_backend`. A new one is a file, a line here, and its name in config.keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from omnistage.config.stage import DiffusionStageConfig
from omnistage.core.errors import ConfigError, did_you_mean
from omnistage.modeling.diffusion import BlockedModel, DiffusionModel, WholeModel
from omnistage.stages.diffusion.caches.base import StepCache
from omnistage.stages.diffusion.caches.first_block import FirstBlockCache, FirstBlockSettings
from omnistage.stages.diffusion.caches.tea import TeaCache, TeaSettings

NONE = "none"

_CACHES: dict[str, tuple[type[msgspec.Struct], Callable[[BlockedModel, Any], StepCache]]] = {
    "first_block": (FirstBlockSettings, FirstBlockCache),
    "tea_cache": (TeaSettings, TeaCache),
}


def step_cache(config: DiffusionStageConfig, model: DiffusionModel | WholeModel) -> StepCache | None:
    """The cache that the stage asks for. Raises ConfigError for settings that it has not, and for a model without blocks."""
    where = f"stage {config.model_stage}: cache_"
    if config.cache_backend == NONE:
        if config.cache_config:
            raise ConfigError.of(f"{where}config", config.cache_config, "nothing, as cache_backend is none")
        return None
    if not isinstance(model, BlockedModel):
        raise ConfigError.of(f"{where}backend", config.cache_backend, "none, as this model does not show its blocks")
    settings, make = _CACHES[config.cache_backend]
    return make(model, _settings(settings, config.cache_config, f"{where}config"))


def _settings(kind: type[msgspec.Struct], values: dict[str, Any], where: str) -> msgspec.Struct:
    for name in values:
        if name not in kind.__struct_fields__:
            raise ConfigError(f"{where}.{name}: unknown key{did_you_mean(name, kind.__struct_fields__)}", field=where)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}", field=where) from None
