"""Loads a causal language model in Hugging Face layout: by our own decoder where it has that shape, else by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omnistage.config.hooks import resolve_hook
from omnistage.config.stage import ARStageConfig
from omnistage.core.errors import BrokenCheckpointError, ConfigError
from omnistage.modeling.decoder import DecoderShape, decoder_shape, load_decoder
from omnistage.modeling.folder import CONFIG, read_json
from omnistage.modeling.kernels.chosen import chosen_layout
from omnistage.modeling.protocols import ARModel
from omnistage.modeling.tensors import dtype_of

# Model types whose every checkpoint is a decoder of modeling.decoder, as far as its configuration passes there.
DECODER_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3", "qwen3_moe"})
_UNIVERSAL = "omnistage.modeling.transformers_model:load_transformers_model"


def load(config: ARStageConfig) -> ARModel:
    """The model of `config.model_path`. Raises BrokenCheckpointError for a folder that is none, ConfigError for a
    `model_impl` that cannot run it."""
    folder, dtype = Path(config.model_path), dtype_of(config.dtype)
    settings = read_json(folder, CONFIG)
    shape = _shape(folder, settings) if config.model_impl != "transformers" else None
    if shape is None and config.model_impl == "decoder":
        accepted = f"auto or transformers, because {folder} is no plain {', '.join(sorted(DECODER_TYPES))}"
        raise ConfigError.of(f"stage {config.model_stage}: model_impl", config.model_impl, accepted)
    if shape is not None:
        return load_decoder(folder, shape, dtype, layout=chosen_layout())
    universal: Any = resolve_hook(_UNIVERSAL)  # importing transformers takes seconds: only for those who need it
    model: ARModel = universal(folder, dtype)
    return model


def _shape(folder: Path, settings: dict[str, Any]) -> DecoderShape | None:
    if settings.get("model_type") not in DECODER_TYPES:
        return None
    try:
        return decoder_shape(settings)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BrokenCheckpointError(f"{folder / CONFIG} describes no model: {type(error).__name__} {error}") from None
