"""Builds the engine of an AR stage from its resolved configuration: loads hooks and model, lays out the cache."""

from __future__ import annotations

import logging
from typing import Any

from omnistage.config.hooks import resolve_hook
from omnistage.config.stage import ARStageConfig
from omnistage.core.errors import ConfigError
from omnistage.modeling.protocols import ARModel, Bridge, CapturedModel, FramedModel, Processor
from omnistage.stages.ar.block_manager import BlockManager
from omnistage.stages.ar.captured import CapturedRows
from omnistage.stages.ar.engine import ARStageEngine
from omnistage.stages.ar.runner import ARRunner, cache_shape
from omnistage.stages.ar.scheduler import Limits, Scheduler

log = logging.getLogger(__name__)


def build_ar_engine(config: ARStageConfig) -> ARStageEngine:
    """A stage with sources needs a `bridge`, an entry stage a `processor`. Loaders' own errors pass through."""
    if config.input_sources and config.bridge is None:
        raise ConfigError.of(f"stage {config.model_stage}: bridge", None, "a hook, because the stage has sources")
    if not config.input_sources and config.processor is None:
        raise ConfigError.of(f"stage {config.model_stage}: processor", None, "a hook, because the stage is an entry")
    bridge: Any = resolve_hook(config.bridge) if config.input_sources and config.bridge is not None else None
    load_processor: Any = resolve_hook(config.processor) if config.processor is not None else None
    load_model: Any = resolve_hook(config.loader)
    processor = load_processor(config) if load_processor is not None else None
    return ar_engine(config, load_model(config), processor, bridge)


def ar_engine(
    config: ARStageConfig, model: ARModel, processor: Processor | None = None, bridge: Bridge | None = None
) -> ARStageEngine:
    """The engine around a loaded model. Its length is `max_model_len`, or what the model has positions for. Raises
    ConfigError if the cache cannot hold one sequence of that length."""
    max_model_len = min(config.max_model_len, model.max_positions)
    block_nbytes = cache_shape(model, config.block_size).block_nbytes
    num_blocks = config.kv_cache_bytes // block_nbytes
    if (num_blocks - 1) * config.block_size < max_model_len:
        needed = (-(-max_model_len // config.block_size) + 1) * block_nbytes
        accepted = f"at least {needed} bytes for max_model_len {max_model_len}"
        raise ConfigError.of(f"stage {config.model_stage}: kv_cache_bytes", config.kv_cache_bytes, accepted)
    capture_layers = _capture_layers(config, model)
    framed = model if isinstance(model, FramedModel) else None
    runner = ARRunner(
        model,
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_model_len=max_model_len,
        capture_layers=capture_layers,
    )
    runner.warm_up()
    told = {"stage": config.model_stage}
    log.info("%s computes with %s", type(model).__name__, runner.ops.name, extra=told)
    fits = min(config.max_num_seqs, (num_blocks - 1) * config.block_size / max_model_len)
    log.info(
        "the cache holds %d tokens, %.1f requests of %d",
        (num_blocks - 1) * config.block_size,
        fits,
        max_model_len,
        extra=told,
    )
    limits = Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        enable_prefix_caching=config.enable_prefix_caching,
        enable_chunked_prefill=config.enable_chunked_prefill,
    )
    captured = CapturedRows(config.block_size)
    return ARStageEngine(
        config,
        Scheduler(limits, BlockManager(num_blocks, config.block_size), captured),
        runner,
        captured,
        vocab_size=model.vocab_size,
        processor=processor,
        bridge=bridge,
        captures=bool(capture_layers) or framed is not None,
        framed=framed,
    )


def _capture_layers(config: ARStageConfig, model: ARModel) -> tuple[int, ...]:
    """`capture_layers` of the stage's extras, or what the model says: layers whose hidden states leave the stage."""
    known = list(model.capture_layers) if isinstance(model, CapturedModel) else []
    key = f"stage {config.model_stage}: extras.capture_layers"
    match config.extras.get("capture_layers", known):
        case [*layers] if all(isinstance(layer, int) and 0 <= layer <= model.num_layers for layer in layers):
            return tuple(layers)
        case other:
            raise ConfigError.of(key, other, f"a list of integers in [0, {model.num_layers}]")
