"""Linear layers as they are and as oneDNN packs them."""

from __future__ import annotations

import pytest
import torch

from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.linear import PlainLinear, can_pack, packed, padded_count

CPU = torch.device("cpu")


@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_packed_layer_is_the_same(rows: int, has_bias: bool) -> None:
    """Fault: a bias is lost, or the packing knows one number of rows only."""
    random = torch.Generator().manual_seed(2)
    plain = PlainLinear(torch.randn(24, 40, generator=random), torch.randn(24, generator=random) if has_bias else None)
    x = torch.randn(rows, 40, generator=random)
    torch.testing.assert_close(packed(plain)(TorchOps(), x), plain(TorchOps(), x), atol=1e-4, rtol=1e-4)
    assert can_pack(torch.float32, CPU)


def test_few_counts_of_rows_are_asked_for() -> None:
    """Fault: code for every length of a prompt, and memory with it; rows that are computed for nothing."""
    counts = [padded_count(count) for count in range(1, 513)]
    assert set(counts) == {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512}
    assert all(count <= computed <= count * 3 // 2 for count, computed in enumerate(counts, 1))
    assert padded_count(0) == 0


def test_what_cannot_be_packed() -> None:
    """Fault: weights of a kind that oneDNN does not know end the loading."""
    assert not can_pack(torch.float64, CPU)
    assert not can_pack(torch.float32, torch.device("meta"))
