"""The thinker's prompts, from the folder that was fetched. Costs no torch: a process that prepares prompts has none."""

from __future__ import annotations

from pathlib import Path

from omnistage.config.stage import ARStageConfig
from omnistage.modeling.folder import CONFIG, read_json
from omnistage.modeling.protocols import Processor
from omnistage.modeling.text_processor import load_text_processor


def load_processor(config: ARStageConfig) -> Processor:
    """Chat template and tokenizer of the model's own folder."""
    folder = Path(config.model_path)
    return load_text_processor(folder, int(read_json(folder, CONFIG)["vocab_size"]), config.max_model_len)
