"""Tokens and positions of prompts with pictures are those of transformers, which the models were trained with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnistage.core.errors import InvalidRequestError
from omnistage.models.qwen_image.edit_prompts import EDIT, EDIT_PLUS, expanded
from omnistage.models.qwen_image.prompts import load_wish_reader


def test_positions(pipeline: Any) -> None:
    """Fault: a picture stands on one line; the text behind it begins inside."""
    token = pipeline.text_encoder.config.image_token_id
    ids = np.array([5, token, 6, 7, token, 8], np.int32)
    grids = [(2, 3), (4, 1)]
    found, positions = expanded(ids, grids, token, "prompt")
    assert found.tolist() == [5, *[token] * 6, 6, 7, *[token] * 4, 8]
    kinds = torch.from_numpy((found == token).astype(np.int32))[None]
    grid = torch.tensor([[1, 2 * tall, 2 * wide] for tall, wide in grids])
    told = torch.from_numpy(found.astype(np.int64))[None]
    expected, _ = pipeline.text_encoder.model.get_rope_index(told, mm_token_type_ids=kinds, image_grid_thw=grid)
    assert positions.tolist() == expected[:, 0].tolist()


def test_words_around_a_prompt(folder: Path) -> None:
    """Fault: a picture behind the wish, or under its neighbour's number. All words are compared by test_parity_edit.py."""
    filled = EDIT_PLUS.template.filled("a cat", 2)
    assert "Picture 1: <|vision_start|><|image_pad|><|vision_end|>Picture 2: " in filled
    assert filled.endswith("<|vision_end|>a cat<|im_end|>\n<|im_start|>assistant\n")
    ids = load_wish_reader(folder / "tokenizer", 512, EDIT.template).ids("a cat", "prompt", 1)
    assert (ids == 406).sum() == 1


def test_tokens_that_stand_for_pictures_are_not_typed() -> None:
    """Fault: a text that spells such a token moves a picture into it."""
    with pytest.raises(InvalidRequestError, match="prompt: 'a text with 1 tokens that stand for pictures'"):
        expanded(np.array([9, 9], np.int32), [(1, 1)], 9, "prompt")
