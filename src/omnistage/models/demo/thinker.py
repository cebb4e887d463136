"""The thinker stage's model: a small Llama-shaped language model, from the folder that was fetched."""

from __future__ import annotations

from pathlib import Path

from omnistage.config.stage import ARStageConfig
from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.decoder import DecoderShape, decoder_shape, load_decoder
from omnistage.modeling.folder import CONFIG, read_json
from omnistage.modeling.protocols import ARModel
from omnistage.modeling.tensors import dtype_of


def load(config: ARStageConfig) -> ARModel:
    """Raises BrokenCheckpointError for a folder that is not what was fetched."""
    folder = Path(config.model_path)
    return load_decoder(folder, _shape(folder), dtype_of(config.dtype))


def _shape(folder: Path) -> DecoderShape:
    try:
        shape = decoder_shape(read_json(folder, CONFIG))
    except (KeyError, TypeError, ValueError):
        shape = None
    if shape is None:
        raise BrokenCheckpointError(f"{folder / CONFIG} does not describe the model that `omnistage fetch demo` brings")
    return shape
