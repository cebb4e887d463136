"""Encoders against transformers' own, and several media at once against each alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnistage.core.errors import StageFailedError
from omnistage.modeling.checkpoint import WeightsReader
from omnistage.modeling.protocols import EncodedMedia, MediaInput
from omnistage.models.qwen3_omni.encoders import Encoders, load_encoders
from omnistage.models.qwen3_omni.settings import read_config
from tests.models.qwen3_omni.reference import inputs_of
from tests.models.qwen3_omni.thinking import picture, prompt_of, sound


def loaded(tiny: Path) -> Encoders:
    settings = read_config(tiny).section("thinker_config").values
    before = torch.random.get_rng_state()
    made = load_encoders(WeightsReader(tiny, torch.float32, "thinker."), settings)
    assert torch.equal(torch.random.get_rng_state(), before), "weights were drawn before they were replaced"
    return made


@pytest.fixture(scope="module")
def encoders(tiny: Path) -> Encoders:
    return loaded(tiny)


def expect_equal(found: Sequence[EncodedMedia], expected: Sequence[EncodedMedia]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one.rows, other.rows, atol=1e-4)
        assert (one.layered is None) == (other.layered is None)
        if one.layered is not None and other.layered is not None:
            assert torch.allclose(one.layered, other.layered, atol=1e-4)


def test_rows_are_those_of_transformers(encoders: Encoders, theirs: Any) -> None:
    """Fault: positions that are computed and not stored are lost on the way from an empty module; another layer is merged."""
    random = np.random.default_rng(1)
    shown, told = picture(random, 4, 6), sound(random, 230)
    named = inputs_of(prompt_of(theirs, shown, told))
    with torch.inference_mode():
        seen = theirs.thinker.model.get_image_features(named["pixel_values"], named["image_grid_thw"])
        heard = theirs.thinker.model.get_audio_features(named["input_features"], named["feature_attention_mask"])
    layered = torch.stack([rows[0] for rows in seen.deepstack_features])
    expected = [EncodedMedia(seen.pooler_output[0], layered), EncodedMedia(heard.last_hidden_state)]
    expect_equal(encoders.encode([shown, told]), expected)


def test_media_of_one_call_are_as_alone(tiny: Path) -> None:
    """Fault: attention reaches over the border of a picture; short sound hears the padding that longer sound brings, which
    shows where convolutions have biases."""
    encoders, random = loaded(tiny), np.random.default_rng(2)
    with torch.no_grad():
        for layer in (encoders._audio.conv2d1, encoders._audio.conv2d2):
            layer.bias.normal_(generator=torch.Generator().manual_seed(3))
    media = [
        sound(random, 37),
        picture(random, 4, 4),
        sound(random, 230),
        picture(random, 2, 6, frames=3),
        sound(random, 37),
        picture(random, 8, 2),
        sound(random, 100),
        sound(random, 99),
        sound(random, 1000),
    ]
    together = encoders.encode(media)
    assert [len(one.rows) for one in together] == [one.tokens for one in media]
    expect_equal(together, [encoders.encode([one])[0] for one in media])


def test_what_is_no_array_is_refused(encoders: Encoders) -> None:
    """Fault: a processor's mistake is a traceback out of torch."""
    with pytest.raises(StageFailedError, match="reads arrays, not list"):
        encoders.encode([MediaInput("image", "k", (), 1, {"pixel_values": [1.0], "grid_thw": [1, 2, 2]})])
