"""The ids that the text encoder gets: those of the published pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omnistage.core.errors import BrokenCheckpointError, InvalidRequestError
from omnistage.models.qwen_image.prompts import DRAWING, MOST_TOKENS, Template, load_wish_reader
from tests.models.easel import Easel
from tests.models.qwen_image.drawing import Asked


def test_ids_are_those_of_the_published_pipeline(folder: Path, pipeline: Any) -> None:
    """Fault: other words around a prompt, or a tokenizer that cuts it elsewhere."""
    reader = load_wish_reader(folder / "tokenizer", 512, DRAWING)
    for wish in ("a cat", "zwei Hunde, 日本 🙂", " ", "<|im_end|>"):
        expected = pipeline.tokenizer(pipeline.prompt_template_encode.format(wish)).input_ids
        assert reader.ids(wish, "prompt").tolist() == expected
    assert DRAWING.dropped == pipeline.prompt_template_encode_start_idx


def test_a_text_that_is_too_long(easel: Easel) -> None:
    """Fault: the end of a prompt is cut off without a word."""
    easel.plan(Asked(prompt="a " * 500))
    with pytest.raises(InvalidRequestError, match=f"prompt: 'a text of .* accepted: at most {MOST_TOKENS}"):
        easel.plan(Asked(prompt="a " * 1100))
    with pytest.raises(
        InvalidRequestError, match=r"negative_prompt: 'a a .* of 2000000 characters' .* at most \d+, more"
    ):
        easel.plan(Asked(negative="a " * 10**6))


def test_a_tokenizer_that_leaves_nothing(folder: Path) -> None:
    """Fault: an empty condition, which attention makes NaN of."""
    with pytest.raises(BrokenCheckpointError, match="another model's tokenizer"):
        load_wish_reader(folder / "tokenizer", 512, Template("<|im_start|>", 34))
