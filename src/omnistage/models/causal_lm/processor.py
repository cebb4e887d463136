"""Prompts of a causal language model in Hugging Face layout."""

from __future__ import annotations

from pathlib import Path

from omnistage.config.stage import ARStageConfig
from omnistage.modeling.folder import CONFIG, read_json
from omnistage.modeling.protocols import Processor
from omnistage.modeling.text_processor import load_text_processor


def load_processor(config: ARStageConfig) -> Processor:
    """The processor of `config.tokenizer_path`, or else of the model's own folder. Raises BrokenCheckpointError."""
    folder = Path(config.model_path)
    settings = read_json(folder, CONFIG)
    vocab_size = int(settings.get("vocab_size") or settings.get("text_config", {}).get("vocab_size", 0))
    return load_text_processor(Path(config.tokenizer_path or folder), vocab_size, config.max_model_len)
