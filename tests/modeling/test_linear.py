"""Linear layers as they are, in panels, and as oneDNN packs them."""

from __future__ import annotations

import pytest
import torch

from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.linear import (
    Layout,
    PackedLinear,
    PanelLinear,
    PlainLinear,
    can_pack,
    embedded,
    in_panels,
    laid_out,
    packed,
    padded_count,
    with_bias,
)

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


@pytest.mark.parametrize("outs", [1, 31, 32, 33, 64])
def test_panels_hold_every_weight_once(outs: int) -> None:
    """Fault: the last outputs are lost, or an embedding's row is another's."""
    random = torch.Generator().manual_seed(3)
    weight = torch.randn(outs, 5, generator=random)
    layer = in_panels(PlainLinear(weight))
    assert layer.panels.shape == (-(-outs // 32), 5, 32)
    assert layer.panels.is_contiguous()
    tokens = torch.arange(outs).flip(0)
    assert torch.equal(embedded(tokens, layer), weight[tokens])
    assert torch.equal(embedded(tokens, weight), weight[tokens])


@pytest.mark.parametrize(
    ("layout", "dtype", "wanted"),
    [
        ("plain", torch.float32, PlainLinear),
        ("panels", torch.float32, PanelLinear),
        ("panels", torch.bfloat16, PanelLinear),
        ("panels", torch.float64, PlainLinear),
        ("packed", torch.float32, PackedLinear),
        ("packed", torch.float64, PlainLinear),
    ],
)
def test_weights_lie_as_asked_where_that_serves_them(layout: Layout, dtype: torch.dtype, wanted: type) -> None:
    """Fault: a dtype that no kernel knows is laid out for one, and ends the loading or the first step."""
    assert type(laid_out(PlainLinear(torch.zeros(8, 8, dtype=dtype)), layout)) is wanted


@pytest.mark.parametrize("layout", ["plain", "panels", "packed"])
def test_a_layer_takes_another_bias(layout: Layout) -> None:
    """Fault: the bias of a layout is left out, or the weights are copied."""
    if layout == "packed" and not can_pack(torch.float32, torch.device("cpu")):
        pytest.skip("oneDNN is not here")
    layer = laid_out(PlainLinear(torch.eye(3)), layout)
    biased = with_bias(layer, torch.tensor([0.0, 1.0, float("-inf")]))
    made = biased(TorchOps(), torch.tensor([[5.0, 6.0, 7.0]]))
    assert made.tolist() == [[5.0, 7.0, float("-inf")]]
