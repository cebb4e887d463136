"""The encoder of pictures and videos beside transformers' own, with random weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from omnistage.modeling.folder import Section
from omnistage.models.qwen3_omni import encoder_layers
from omnistage.models.qwen3_omni.settings import vision_settings
from omnistage.models.qwen3_omni.vision_encoder import VisionEncoder
from tests.models.qwen3_omni.towers import expect_as_near, redrawn, saved, weights_of

CONFIG: dict[str, Any] = {
    "depth": 4,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 40,
    "num_position_embeddings": 49,
    "deepstack_visual_indexes": [0, 2],
}
PATCH_VALUES = 3 * 2 * 4 * 4
Grids = Sequence[tuple[int, int, int]]
CALLS: dict[str, Grids] = {
    "one picture": [(1, 4, 6)],
    "one row": [(1, 2, 2)],
    "larger than the square of positions": [(1, 10, 16)],
    "several pictures": [(1, 4, 6), (1, 6, 4), (1, 2, 12), (1, 2, 12), (1, 8, 8)],
    "a video": [(3, 4, 6)],
    "videos and pictures": [(1, 2, 4), (4, 2, 4), (1, 6, 2), (2, 6, 2), (2, 2, 2)],
}


@pytest.fixture(scope="module")
def theirs() -> Any:
    from transformers.models.qwen3_omni_moe import configuration_qwen3_omni_moe, modeling_qwen3_omni_moe

    config = configuration_qwen3_omni_moe.Qwen3OmniMoeVisionEncoderConfig(**CONFIG)
    return redrawn(modeling_qwen3_omni_moe.Qwen3OmniMoeVisionEncoder(config))


@pytest.fixture(scope="module")
def folder(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(theirs, tmp_path_factory.mktemp("vision"))


def loaded(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> VisionEncoder:
    weights = weights_of(folder, dtype)
    made = VisionEncoder(weights, vision_settings(Section({"vision_config": CONFIG | changes}, "config.json")))
    weights.expect_all_read()
    return made


@pytest.fixture(scope="module")
def ours(folder: Path) -> VisionEncoder:
    return loaded(folder)


def patches_of(grids: Grids) -> torch.Tensor:
    count = sum(math.prod(grid) for grid in grids)
    return torch.randn(count, PATCH_VALUES, generator=torch.Generator().manual_seed(count))


@torch.inference_mode()
def encoded(module: Any, grids: Grids) -> tuple[torch.Tensor, torch.Tensor]:
    """transformers' rows, and those between the layers."""
    patches = patches_of(grids).to(module.dtype)
    made = module(patches, grid_thw=torch.tensor(grids))
    return made.pooler_output, torch.stack(made.deepstack_features)


@torch.inference_mode()
def seen(encoder: VisionEncoder, grids: Grids) -> tuple[torch.Tensor, torch.Tensor]:
    rows, layered = encoder(patches_of(grids), grids)
    assert layered is not None
    return rows, layered


@pytest.mark.parametrize("call", CALLS)
def test_rows_are_those_of_transformers(ours: VisionEncoder, theirs: Any, call: str) -> None:
    """Fault: patches in another order than their places; positions stretched by another rule; attention over a border; the rows of
    one layer for another's."""
    for found, expected in zip(seen(ours, CALLS[call]), encoded(theirs, CALLS[call]), strict=True):
        assert found.shape == expected.shape
        assert (found - expected).abs().max() <= 1e-5


def test_bfloat16_is_as_near_as_that_of_transformers(folder: Path, theirs: Any) -> None:
    """Fault: places or angles that are rounded before they are used."""
    grids = [*CALLS["videos and pictures"], *CALLS["larger than the square of positions"]]
    rounded = encoded(copy.deepcopy(theirs).to(torch.bfloat16), grids)
    exact = encoded(theirs, grids)
    for triple in zip(seen(loaded(folder, torch.bfloat16), grids), rounded, exact, strict=True):
        expect_as_near(*triple)


def test_a_long_call_goes_in_parts(ours: VisionEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: memory that grows with the length of a video; rows lost where parts meet; a frame's rows scored with another's."""
    grids = CALLS["videos and pictures"]
    whole = seen(ours, grids)
    attended: list[torch.Size] = []
    attend = functional.scaled_dot_product_attention

    def watched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        attended.append(q.shape)
        return attend(q, k, v)

    monkeypatch.setattr(encoder_layers, "PART_ROWS", 20)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    for found, expected in zip(seen(ours, grids), whole, strict=True):
        assert torch.allclose(found, expected, atol=1e-5)
    assert max(frames * patches for frames, _, patches, _ in attended) <= 20
    assert max(patches for _, _, patches, _ in attended) == 12
    assert sum(frames * patches for frames, _, patches, _ in attended) == CONFIG["depth"] * len(patches_of(grids))


def test_an_encoder_may_have_no_rows_between_layers(theirs: Any, tmp_path: Path) -> None:
    """Fault: an empty list is taken for one of no rows."""
    saved(
        theirs,
        tmp_path,
        **{f"merger_list__{name.replace('.', '__')}": None for name in theirs.merger_list.state_dict()},
    )
    rows, layered = loaded(tmp_path, deepstack_visual_indexes=[])(patches_of([(1, 2, 2)]), [(1, 2, 2)])
    assert layered is None and rows.shape == (1, 40)
