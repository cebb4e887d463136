"""Compiled kernels against torch, on random shapes, with one thread and two, over caches whose unwritten places are NaN."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from omnistage.modeling.kernels.blocks import GatedWeights, HeadNorms
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.kernels.native import KernelOps
from omnistage.modeling.linear import PANEL, PlainLinear, in_panels
from omnistage.modeling.rotary import RotationCache
from omnistage.modeling.step import StepRows
from tests.modeling.kernels.steps import DTYPES, attention_weights, caches, drawn, experts_weights, panels, quick, steps
from tests.modeling.kernels.steps import threads as threads

TORCH = TorchOps()
CLOSE: dict[torch.dtype, float] = {torch.float32: 2e-5, torch.bfloat16: 0.06}


def expect_close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.shape == expected.shape
    assert found.dtype is dtype
    torch.testing.assert_close(found.float(), expected.float(), atol=CLOSE[dtype], rtol=CLOSE[dtype])


@given(step=steps())
@quick
def test_attends_as_torch_does(kernels: KernelOps, step: dict[str, Any]) -> None:
    q, k, v = (
        torch.randn(step["rows"].num_rows, heads, step["dim"], generator=step["random"]).to(step["dtype"])
        for heads in (step["heads"], step["kv_heads"], step["kv_heads"])
    )
    keys, values = caches(step)
    copies = keys.clone(), values.clone()
    named = {"scale": step["dim"] ** -0.5, "window": step["window"]}
    found = kernels.attend(q, k, v, keys, values, step["rows"], **named)
    expected = TORCH.attend(q, k, v, *copies, step["rows"], **named)
    expect_close(found, expected, step["dtype"])
    assert torch.equal(keys.nan_to_num(7.0), copies[0].nan_to_num(7.0))
    assert torch.equal(values.nan_to_num(7.0), copies[1].nan_to_num(7.0))


@given(step=steps())
@quick
def test_a_row_attends_with_the_same_bits_in_any_chunk(kernels: KernelOps, step: dict[str, Any]) -> None:
    """Fault: how a prompt is cut, or who else is in the step, changes an answer."""
    rows: StepRows = step["rows"]
    q, k, v = (
        torch.randn(rows.num_rows, heads, step["dim"], generator=step["random"]).to(step["dtype"])
        for heads in (step["heads"], step["kv_heads"], step["kv_heads"])
    )
    keys, values = caches(step)
    named = {"scale": step["dim"] ** -0.5, "window": step["window"]}
    together = kernels.attend(q, k, v, keys.clone(), values.clone(), rows, **named)
    places = [
        (slot, position)
        for slot, start, count in zip(rows.slots, rows.starts, rows.counts, strict=True)
        for position in range(start, start + count)
    ]
    for row, (slot, position) in enumerate(places):
        alone = StepRows(rows.table, [slot], [position], [1], step["size"], rows.device)
        one = slice(row, row + 1)
        found = kernels.attend(q[one], k[one], v[one], keys, values, alone, **named)
        assert torch.equal(found[0], together[row])


@given(step=steps(), has_norms=st.booleans())
@quick
def test_attends_from_joined_projections_as_torch_does(
    kernels: KernelOps, step: dict[str, Any], has_norms: bool
) -> None:
    random, dim, dtype = step["random"], step["dim"], step["dtype"]
    qkv = torch.randn(step["rows"].num_rows, (step["heads"] + 2 * step["kv_heads"]) * dim, generator=random).to(dtype)
    query, key = ((1 + 0.1 * torch.randn(dim, generator=random)).to(dtype) for _ in range(2))
    norms = HeadNorms(query, key, 1e-6) if has_norms else None
    rotations = RotationCache(dim, 10000.0, torch.device("cpu")).reaching(150)
    keys, values = caches(step)
    copies = keys.clone(), values.clone()
    named = {"heads": step["heads"], "scale": dim**-0.5, "window": step["window"]}
    found = kernels.attend_joined(qkv, norms, rotations, keys, values, step["rows"], **named)
    expected = TORCH.attend_joined(qkv, norms, rotations, *copies, step["rows"], **named)
    expect_close(found, expected, dtype)
    expect_close(keys.nan_to_num(7.0), copies[0].nan_to_num(7.0), dtype)


@given(
    rows=st.integers(1, 9),
    hidden=st.integers(1, 200),
    has_residual=st.booleans(),
    dtype=DTYPES,
    seed=st.integers(0, 99),
)
@quick
def test_adds_and_normalises_as_torch_does(
    kernels: KernelOps, rows: int, hidden: int, has_residual: bool, dtype: torch.dtype, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    x, residual = (torch.randn(rows, hidden, generator=random).to(dtype) for _ in range(2))
    weight = torch.randn(hidden, generator=random).to(dtype)
    ours, theirs = x.clone(), x.clone()
    added = residual if has_residual else None
    expect_close(
        kernels.add_rms_norm(ours, added, weight, 1e-6), TORCH.add_rms_norm(theirs, added, weight, 1e-6), dtype
    )
    assert torch.equal(ours, theirs)


@given(rows=st.integers(1, 9), inner=st.integers(1, 200), dtype=DTYPES, seed=st.integers(0, 99))
@quick
def test_gates_as_torch_does(kernels: KernelOps, rows: int, inner: int, dtype: torch.dtype, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    gate_up = (30 * torch.randn(rows, 2 * inner, generator=random)).to(dtype)
    expect_close(kernels.silu_mul(gate_up), TORCH.silu_mul(gate_up), dtype)


@given(
    rows=st.integers(1, 210),
    inner=st.one_of(st.integers(1, 80), st.sampled_from([511, 512, 1030])),
    outer=st.integers(1, 200),
    has_bias=st.booleans(),
    dtype=DTYPES,
    seed=st.integers(0, 99),
)
@quick
def test_multiplies_as_torch_does(
    kernels: KernelOps, rows: int, inner: int, outer: int, has_bias: bool, dtype: torch.dtype, seed: int
) -> None:
    """Panels are NaN behind their last output: what is read there must not be written."""
    random = torch.Generator().manual_seed(seed)
    x, weight = drawn(random, dtype, rows, inner), drawn(random, dtype, outer, inner)
    plain = PlainLinear(weight, drawn(random, dtype, outer) if has_bias else None)
    layer = in_panels(plain)
    if outer % PANEL:
        layer.panels[-1, :, outer % PANEL :] = float("nan")
    found = kernels.linear(x, layer)
    expect_close(found, plain(TORCH, x), dtype)
    expect_close(TORCH.linear(x, layer), plain(TORCH, x), dtype)
    row = seed % rows
    assert torch.equal(kernels.linear(x[row : row + 1].clone(), layer)[0], found[row])  # whatever its neighbours


def test_all_inputs_of_a_wide_layer_count(kernels: KernelOps) -> None:
    """Fault: sums that are finished part by part, where many rows are computed, begin again with each part."""
    random = torch.Generator().manual_seed(7)
    layer, x = panels(random, torch.float32, 40, 1100), drawn(random, torch.float32, 30, 1100)
    expect_close(kernels.linear(x, layer), TORCH.linear(x, layer), torch.float32)


@given(step=steps(), hidden=st.sampled_from([16, 48, 112]), has_norms=st.booleans(), has_more=st.booleans())
@quick
def test_the_first_half_of_a_layer_is_its_operations(
    kernels: KernelOps, step: dict[str, Any], hidden: int, has_norms: bool, has_more: bool
) -> None:
    """To the bit those of the library one by one, each of which is close to torch's: steps of few rows and of many say the same."""
    random, dim, dtype = step["random"], step["dim"], step["dtype"]
    weights = attention_weights(step, hidden, has_norms=has_norms, has_bias=has_more)
    rows = drawn(random, dtype, step["rows"].num_rows, hidden)
    added = drawn(random, dtype, *rows.shape) if has_more else None
    rotations = RotationCache(dim, 10000.0, torch.device("cpu")).reaching(150)
    keys, values = caches(step)

    def run(block: Any) -> list[torch.Tensor]:
        grown, cached = rows.clone(), (keys.clone(), values.clone())
        return [block(weights, grown, added, rotations, *cached, step["rows"]), grown, *cached]

    one_by_one = run(partial(TorchOps.attention_block, kernels))
    for _ in range(2):  # the second time over another cache: what is bound once are the weights
        ours = run(kernels.attention_block)
        assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(ours, one_by_one, strict=True))


@given(
    rows=st.integers(1, 120),
    hidden=st.sampled_from([16, 48, 250]),
    inner=st.sampled_from([16, 112, 10]),
    has_bias=st.booleans(),
    dtype=DTYPES,
    seed=st.integers(0, 99),
)
@quick
def test_a_gated_mlp_is_its_operations(
    kernels: KernelOps, rows: int, hidden: int, inner: int, has_bias: bool, dtype: torch.dtype, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    gate_up = panels(random, dtype, 2 * inner, hidden, has_bias=has_bias)
    weights = GatedWeights(gate_up, panels(random, dtype, hidden, inner))
    normed = drawn(random, dtype, rows, hidden)
    found = kernels.gated_block(weights, normed)
    assert torch.equal(found, TorchOps.gated_block(kernels, weights, normed))
    if dtype is torch.float32:
        expect_close(found, TORCH.gated_block(weights, normed), dtype)


@given(
    rows=st.integers(1, 130),
    hidden=st.sampled_from([16, 48, 250]),
    experts=st.integers(1, 12),
    per_row=st.integers(1, 8),
    is_shared=st.booleans(),
    dtype=DTYPES,
    seed=st.integers(0, 99),
)
@quick
def test_a_mixture_of_experts_is_its_operations(
    kernels: KernelOps,
    rows: int,
    hidden: int,
    experts: int,
    per_row: int,
    is_shared: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    """And a row gets the same bits whatever its neighbours are, and whoever chose the experts that it chose."""
    random = torch.Generator().manual_seed(seed)
    weights = experts_weights(random, dtype, hidden, experts=experts, per_row=per_row, is_shared=is_shared)
    normed = drawn(random, dtype, rows, hidden)
    found = kernels.experts_block(weights, normed)
    expect_close(found, TorchOps.experts_block(kernels, weights, normed), dtype)
    if dtype is torch.float32:
        expect_close(found, TORCH.experts_block(weights, normed), dtype)
    row = seed % rows
    assert torch.equal(kernels.experts_block(weights, normed[row : row + 1].clone())[0], found[row])
    few = torch.randperm(rows, generator=random)[: 1 + rows // 3]
    assert torch.equal(kernels.experts_block(weights, normed[few]), found[few])


def test_logits_that_are_not_finite_choose_some_expert(kernels: KernelOps) -> None:
    """Fault: rows of a broken model are computed with what lies behind the last expert."""
    weights = experts_weights(torch.Generator(), torch.float32, 16, experts=3, per_row=2, is_shared=True)
    for value in (float("nan"), float("inf"), float("-inf")):
        found = kernels.experts_block(weights, torch.full((2, 16), value))
        assert not torch.isfinite(found).any()
