"""Attention within segments beside attention under a mask, the cutting of calls into parts, and what is read of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from omnistage.core.errors import BrokenCheckpointError
from omnistage.models.qwen3_omni import encoder_layers
from omnistage.models.qwen3_omni.encoder_layers import ACTIVATIONS, attend_within, parts_of
from omnistage.models.qwen3_omni.settings import GELUS
from tests.models.qwen3_omni.towers import saved, weights_of


@pytest.mark.parametrize("lengths", [[5], [3, 3, 3], [2, 2, 5, 5, 1, 2]])
def test_a_row_sees_its_segment_alone(lengths: Sequence[int]) -> None:
    """Fault: a border in the wrong place; rows of equal segments mixed up."""
    count = sum(lengths)
    q, k, v = torch.randn(3, count, 2, 8, generator=torch.Generator().manual_seed(1))
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    queries, keys, values = (x.transpose(0, 1) for x in (q, k, v))
    seen = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=owner[:, None] == owner)
    expected = seen.transpose(0, 1).reshape(count, 16)
    assert torch.allclose(attend_within(q, k, v, lengths), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([4], [(slice(0, 1), slice(0, 4))]),
        ([12, 3], [(slice(0, 1), slice(0, 12)), (slice(1, 2), slice(12, 15))]),
        ([4, 6, 1, 9, 1], [(slice(0, 2), slice(0, 10)), (slice(2, 4), slice(10, 20)), (slice(4, 5), slice(20, 21))]),
    ],
)
def test_parts_are_whole_segments(
    lengths: Sequence[int], expected: Sequence[tuple[slice, slice]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a part above the bound that could be two; an empty one; rows of no part."""
    monkeypatch.setattr(encoder_layers, "PART_ROWS", 10)
    assert list(parts_of(lengths)) == expected


def test_every_activation_that_is_accepted_can_be_computed() -> None:
    """Fault: a folder that is accepted and cannot be loaded; one function for both."""
    assert tuple(ACTIVATIONS) == GELUS
    exact, by_tanh = (ACTIVATIONS[name](torch.tensor(2.0)).item() for name in GELUS)
    assert exact == pytest.approx(1.954500, abs=1e-6) and by_tanh == pytest.approx(1.954598, abs=1e-6)


def test_what_a_folder_has_too_little_or_too_much_is_named(tmp_path: Path) -> None:
    """Fault: an encoder of fewer layers than the folder's, or of weights of another size."""
    module = torch.nn.ModuleDict({"first": torch.nn.Linear(3, 2), "second": torch.nn.Linear(3, 2)})
    weights = weights_of(saved(module, tmp_path))
    joined = weights.affine("first", "second", shape=[2, 3])
    assert (tuple(joined.weight.shape), tuple(joined.bias.shape)) == ((4, 3), (4,))
    weights.expect_all_read()
    weights = weights_of(tmp_path)
    weights.affine("first", shape=[2, 3])
    with pytest.raises(BrokenCheckpointError, match=r"no place for tensor tower\.second\.bias \(2 in all\)"):
        weights.expect_all_read()
    with pytest.raises(BrokenCheckpointError, match=r"no tensor tower\.third\.weight"):
        weights.affine("third", shape=[2, 3])
    with pytest.raises(BrokenCheckpointError, match=r"tower\.second\.weight has shape \[2, 3\]"):
        weights.affine("second", shape=[3, 2])
