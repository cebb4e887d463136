"""The text encoder makes what transformers' decoder makes, of texts and of rows that stand at three positions."""

from __future__ import annotations

from typing import Any

import torch

from omnistage.models.qwen_image.text_encoder import TextInput
from tests.models.easel import Easel


@torch.inference_mode()
def test_texts_of_several_lengths(easel: Easel, pipeline: Any) -> None:
    """Fault: a weight in another's place; a short text reads the padding of a batch."""
    texts = [torch.randint(0, 400, (length,), generator=torch.Generator().manual_seed(length)) for length in (3, 41, 8)]
    found = easel.model.parts.text_encoder.encode([TextInput(ids) for ids in texts])
    for ids, rows in zip(texts, found, strict=True):
        expected = pipeline.text_encoder(input_ids=ids[None], output_hidden_states=True).hidden_states[-1][0]
        assert torch.allclose(rows, expected, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_rows_of_pictures_at_their_places(easel: Easel, pipeline: Any) -> None:
    """Fault: planes of a head are turned by another of the three positions; rows of a picture replace other tokens."""
    encoder, body = easel.model.parts.text_encoder, pipeline.text_encoder.model.language_model
    picture = pipeline.text_encoder.config.image_token_id
    ids = torch.tensor([5, 6, picture, picture, picture, 7])
    positions = torch.tensor([[0, 1, 2, 2, 2, 5], [0, 1, 2, 2, 3, 5], [0, 1, 2, 3, 2, 5]])
    rows = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    embeds = body.embed_tokens(ids).clone()
    embeds[2:5] = rows
    expected = body(inputs_embeds=embeds[None], position_ids=positions[:, None]).last_hidden_state[0]
    (found,) = encoder.encode([TextInput(ids, positions, rows)])
    assert torch.allclose(found, expected, rtol=0, atol=1e-5)
