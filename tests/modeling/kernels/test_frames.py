"""Layers over windows of frames and multipliers of steps: the compiled library beside torch, whose forms are tested with the models
that have them.

Faults pinned: a key that a frame must not see, or misses; a state that is not that of torch, or is changed in place; a shape that
fills no vector.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from omnistage.modeling.kernels.frames import (
    KernelMultiplier,
    KernelWindowLayer,
    MultiplierWeights,
    Places,
    TorchFrames,
    TorchMultiplier,
    TorchWindowLayer,
    WindowWeights,
)
from omnistage.modeling.kernels.native import KernelOps
from omnistage.modeling.kernels.waves import KernelWaves
from omnistage.modeling.linear import PlainLinear
from tests.modeling.kernels.steps import quick
from tests.modeling.kernels.steps import threads as threads

CLOSE = 2e-5


def linear(random: torch.Generator, outs: int, ins: int, *, has_bias: bool) -> PlainLinear:
    bias = torch.randn(outs, generator=random) if has_bias else None
    return PlainLinear(torch.randn(outs, ins, generator=random) / ins**0.5, bias)


def window_weights(
    random: torch.Generator, hidden: int, heads: int, kv_heads: int, dim: int, window: int, *, has_bias: bool
) -> WindowWeights:
    norm, scale, mlp_norm, mlp_scale = (0.5 + torch.rand(4, hidden, generator=random)).unbind()
    return WindowWeights(
        norm=norm,
        qkv=linear(random, (heads + 2 * kv_heads) * dim, hidden, has_bias=has_bias),
        output=linear(random, hidden, heads * dim, has_bias=has_bias),
        scale=scale,
        mlp_norm=mlp_norm,
        gate_up=linear(random, 2 * (hidden + 3), hidden, has_bias=False),
        down=linear(random, hidden, hidden + 3, has_bias=False),
        mlp_scale=mlp_scale,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        window=window,
        eps=1e-5,
    )


def multiplier_weights(random: torch.Generator, ins: int, dim: int, ratio: int, kernel: int) -> MultiplierWeights:
    bias, norm, norm_bias, gamma = torch.randn(4, dim, generator=random).unbind()
    return MultiplierWeights(
        steps=linear(random, ratio * dim, ins, has_bias=True),
        taps=torch.randn(kernel, dim, generator=random),
        bias=bias,
        norm=norm,
        norm_bias=norm_bias,
        up=linear(random, 4 * dim, dim, has_bias=True),
        down=linear(random, dim, 4 * dim, has_bias=True),
        gamma=gamma,
        eps=1e-6,
    )


@given(
    kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 2, 3]),
    dim=st.sampled_from([16, 48, 64]),
    hidden=st.sampled_from([16, 27]),
    window=st.sampled_from([1, 2, 9, 72, 300]),
    frames=st.sampled_from([1, 4, 25]),
    ages=st.sampled_from([[0], [1], [5000], [8, 71]]),
    has_bias=st.booleans(),
    seed=st.integers(0, 999),
)
@quick
def test_a_layer_over_a_window_is_torchs(
    kernels: KernelOps,
    kv_heads: int,
    group: int,
    dim: int,
    hidden: int,
    window: int,
    frames: int,
    ages: list[int],
    has_bias: bool,
    seed: int,
) -> None:
    """Fault: of a window wider than a block of scores only the first block is seen."""
    random, held = torch.Generator().manual_seed(seed), window - 1
    weights = window_weights(random, hidden, kv_heads * group, kv_heads, dim, window, has_bias=has_bias)
    first = torch.maximum(torch.arange(frames), held - torch.tensor(ages)[:, None])
    angles = 10 * torch.rand(len(ages), frames, dim // 2, generator=random)
    places = Places(first, torch.cat((angles.cos(), angles.sin()), dim=-1), held)
    x = torch.randn(len(ages), frames, hidden, generator=random)
    keys, values = torch.randn(2, len(ages), kv_heads, held, dim, generator=random)
    given = [one.clone() for one in (x, keys, values)]
    wanted, wanted_state = TorchFrames().window_layer(weights)(x, (keys, values), places)
    layer = KernelWaves(kernels.path).frames.window_layer(weights)
    assert isinstance(layer, KernelWindowLayer)
    found, found_state = layer(x, (keys, values), places)
    torch.testing.assert_close((found, *found_state), (wanted, *wanted_state), atol=CLOSE, rtol=0)
    assert all(torch.equal(one, before) for one, before in zip((x, keys, values), given, strict=True))


@given(
    ins=st.integers(1, 20),
    dim=st.sampled_from([1, 15, 16, 40]),
    ratio=st.integers(1, 3),
    kernel=st.sampled_from([1, 3, 7]),
    frames=st.integers(1, 30),
    batch=st.integers(1, 3),
    seed=st.integers(0, 999),
)
@quick
def test_a_multiplier_is_torchs(
    kernels: KernelOps, ins: int, dim: int, ratio: int, kernel: int, frames: int, batch: int, seed: int
) -> None:
    """Fault: a chunk shorter than the kernel keeps too little of its past."""
    random = torch.Generator().manual_seed(seed)
    weights = multiplier_weights(random, ins, dim, ratio, kernel)
    x = torch.randn(batch, frames, ins, generator=random)
    past = torch.randn(batch, kernel - 1, dim, generator=random)
    given = past.clone()
    wanted, wanted_past = TorchFrames().multiplier(weights)(x, past)
    multiplier = KernelWaves(kernels.path).frames.multiplier(weights)
    assert isinstance(multiplier, KernelMultiplier)
    found, found_past = multiplier(x, past)
    torch.testing.assert_close((found, found_past), (wanted, wanted_past), atol=CLOSE, rtol=0)
    assert torch.equal(past, given)


def test_what_the_library_does_not_compute_is_left_to_torch(kernels: KernelOps) -> None:
    """Fault: heads that fill no vector, or bfloat16, are read as whole vectors of float32."""
    random, frames = torch.Generator().manual_seed(0), KernelWaves(kernels.path).frames
    weights = window_weights(random, 16, 2, 2, 2, 9, has_bias=False)
    assert isinstance(frames.window_layer(weights), TorchWindowLayer)
    narrow = torch.ones(16, dtype=torch.bfloat16)
    multiplier = multiplier_weights(random, 16, 16, 2, 7)
    assert isinstance(frames.multiplier(replace(multiplier, norm=narrow)), TorchMultiplier)
    layer = window_weights(random, 16, 2, 2, 64, 9, has_bias=False)
    assert isinstance(frames.window_layer(replace(layer, norm=narrow)), TorchWindowLayer)
