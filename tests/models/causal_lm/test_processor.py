"""Where the processor of a text model finds its tokenizer and its vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.models.causal_lm.processor import load_processor
from tests.tiny.checkpoints import write_tokenizer
from tests.tiny.engines import greedy, stage_config, stage_request


@pytest.mark.parametrize("config", [{"vocab_size": 400}, {"text_config": {"vocab_size": 400}}])
def test_the_model_decides_the_vocabulary_and_another_folder_may_have_the_tokenizer(
    tmp_path: Path, config: dict
) -> None:
    """Fault: ids that the model has no row for; a tokenizer folder that is not looked into."""
    model, tokenizer = tmp_path / "model", tmp_path / "tokenizer"
    model.mkdir()
    tokenizer.mkdir()
    (model / "config.json").write_text(json.dumps(config))
    write_tokenizer(tokenizer)
    processor = load_processor(stage_config(model, tokenizer_path=str(tokenizer)))
    assert processor(stage_request("r", [399], greedy(1)).request).token_ids == (399,)
    with pytest.raises(InvalidRequestError, match=r"ids in \[0, 399\]"):
        processor(stage_request("r", [400], greedy(1)).request)
