"""Convolutions of the compiled library and of torch beside torch's own in float64, over views whose surroundings are NaN.

Faults pinned: a tap at another place; the last steps, or channels, of a shape that fills no tile; memory that is read or written
beyond a view; a sum that depends on the tile it is computed in.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from omnistage.modeling.kernels.native import KernelOps
from omnistage.modeling.kernels.waves import KernelChain, KernelWaves, Link, TorchWaves
from tests.modeling.kernels.steps import quick
from tests.modeling.kernels.steps import threads as threads

CLOSE = 2e-5


def both(kernels: KernelOps) -> tuple[TorchWaves, TorchWaves]:
    return TorchWaves(), KernelWaves(kernels.path)


def framed(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a view: what lies around each channel's steps, and around the channels, is NaN."""
    batch, channels, time = tensor.shape
    frame = torch.full((batch, channels + 2, time + 40), float("nan"))
    frame[:, 1:-1, 20 : 20 + time] = tensor
    return frame[:, 1:-1, 20 : 20 + time]


@given(
    ins=st.integers(1, 9),
    outs=st.integers(1, 20),
    kernel=st.sampled_from([1, 2, 7]),
    dilation=st.integers(1, 9),
    time=st.integers(0, 150),
    batch=st.integers(1, 3),
    adds=st.booleans(),
    seed=st.integers(0, 999),
)
@quick
def test_a_convolution_is_torchs(
    kernels: KernelOps, ins: int, outs: int, kernel: int, dilation: int, time: int, batch: int, adds: bool, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(outs, ins, kernel, generator=random) / (ins * kernel) ** 0.5
    bias = torch.randn(outs, generator=random)
    past = (kernel - 1) * dilation
    held = torch.randn(batch, ins, past + time, generator=random)
    added = torch.randn(batch, outs, time, generator=random) if adds else None
    expected = torch.zeros(batch, outs, 0).double()
    if time:
        expected = F.conv1d(held.double(), weight.double(), bias.double(), dilation=dilation)
    expected = expected if added is None else expected + added
    for waves in both(kernels):
        convolve = waves.convolution(weight, bias, dilation)
        found = convolve(framed(held), None if added is None else framed(added))
        assert found.dtype is torch.float32
        torch.testing.assert_close(found.double(), expected, atol=CLOSE, rtol=0)


@given(
    ins=st.integers(1, 9),
    outs=st.integers(1, 9),
    stride=st.integers(1, 8),
    time=st.integers(1, 90),
    batch=st.integers(1, 3),
    seed=st.integers(0, 999),
)
@quick
def test_an_upsampling_is_torchs_without_its_ends(
    kernels: KernelOps, ins: int, outs: int, stride: int, time: int, batch: int, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(ins, outs, 2 * stride, generator=random) / ins**0.5
    bias = torch.randn(outs, generator=random)
    held = torch.randn(batch, ins, 1 + time, generator=random)
    whole = F.conv_transpose1d(held.double(), weight.double(), bias.double(), stride=stride)
    for waves in both(kernels):
        upsample = waves.upsampling(weight, bias)
        torch.testing.assert_close(
            upsample(framed(held), None).double(), whole[..., stride:-stride], atol=CLOSE, rtol=0
        )
        assert upsample(held[..., :1], None).shape == upsample(held[..., :0], None).shape == (batch, outs, 0)


@given(time=st.integers(0, 150), channels=st.integers(1, 9), size=st.sampled_from([0.1, 3.0, 3000.0]))
@quick
def test_snake_is_torchs(kernels: KernelOps, time: int, channels: int, size: float) -> None:
    """Fault: a sine that is wrong far from zero; steps beside those that were asked for are written."""
    random = torch.Generator().manual_seed(time)
    x = torch.randn(2, channels, time, generator=random) * size
    alpha, by_beta = torch.rand(2, channels, generator=random) + 0.5
    turned = (x * alpha[:, None]).double()  # as float32 has it
    expected = x.double() + torch.sin(turned) ** 2 * by_beta[:, None].double()
    for waves in both(kernels):
        out = framed(torch.zeros_like(x))
        around = out.as_strided((2, channels, time + 1), out.stride())[..., -1]
        waves.snake(framed(x), alpha, by_beta, out)
        torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=2e-7)
        assert around.isnan().all()


@given(start=st.integers(0, 60), time=st.integers(1, 90), outs=st.integers(1, 12), batch=st.integers(1, 3))
@quick
def test_a_step_has_the_same_bits_wherever_it_is_computed(
    kernels: KernelOps, start: int, time: int, outs: int, batch: int
) -> None:
    """Fault: who shares the batch, or how the sound is cut, changes a sample."""
    random = torch.Generator().manual_seed(start)
    convolve = KernelWaves(kernels.path).convolution(
        torch.randn(outs, 5, 7, generator=random), torch.randn(outs, generator=random), 2
    )
    held = torch.randn(batch, 5, 12 + start + time, generator=random)
    whole = convolve(held, None)
    assert torch.equal(convolve(held[-1:, :, start:], None), whole[-1:, :, start:])


def links_of(waves: TorchWaves, seed: int, ins: int, outs: int, stride: int, dilation: int) -> list[Link]:
    """What a decoder has: an upsampling, a residual unit, and a convolution to one channel."""
    random = torch.Generator().manual_seed(seed)

    def bend(channels: int) -> tuple[torch.Tensor, torch.Tensor]:
        alpha, by_beta = torch.rand(2, channels, generator=random) + 0.5
        return alpha, by_beta

    def convolved(outs: int, ins: int, kernel: int) -> tuple[torch.Tensor, torch.Tensor]:
        weight = torch.randn(outs, ins, kernel, generator=random) / (ins * kernel) ** 0.5
        return weight, torch.randn(outs, generator=random)

    up = torch.randn(ins, outs, 2 * stride, generator=random) / ins**0.5
    return [
        Link(*bend(ins), waves.upsampling(up, torch.randn(outs, generator=random)), 1),
        Link(*bend(outs), waves.convolution(*convolved(outs, outs, 7), dilation), 6 * dilation),
        Link(*bend(outs), waves.convolution(*convolved(outs, outs, 1)), 0, adds=True),
        Link(*bend(outs), waves.convolution(*convolved(1, outs, 7)), 6),
    ]


@given(
    ins=st.integers(1, 9),
    outs=st.integers(1, 9),
    stride=st.integers(1, 5),
    dilation=st.integers(1, 9),
    time=st.integers(0, 40),
    held=st.integers(0, 1),
    batch=st.integers(1, 3),
    seed=st.integers(0, 999),
)
@quick
def test_a_chain_is_its_links_one_by_one(
    kernels: KernelOps, ins: int, outs: int, stride: int, dilation: int, time: int, held: int, batch: int, seed: int
) -> None:
    """Fault: what is added comes from another link; a state that torch would not have left, or that is changed in place."""
    random = torch.Generator().manual_seed(seed)
    shapes = (ins, held), (outs, 6 * dilation), (outs, 6)
    state = tuple(torch.randn(batch, *shape, generator=random) for shape in shapes)
    given, x = [past.clone() for past in state], torch.randn(batch, ins, time, generator=random)
    slow, fast = (waves.chain(links_of(waves, seed, ins, outs, stride, dilation)) for waves in both(kernels))
    assert isinstance(fast, KernelChain)
    wanted, wanted_state = slow(x, state)
    found, found_state = fast(framed(x), state)
    torch.testing.assert_close((found, *found_state), (wanted, *wanted_state), atol=CLOSE, rtol=0)
    assert all(torch.equal(past, before) for past, before in zip(state, given, strict=True))


def test_a_chain_in_low_precision_is_torchs(kernels: KernelOps) -> None:
    """Fault: bfloat16 is read as float32."""
    alpha, by_beta = (torch.rand(2, 4) + 0.5).bfloat16()
    weight, bias = torch.randn(6, 4, 7).bfloat16(), torch.randn(6).bfloat16()
    x, past = torch.randn(2, 4, 30).bfloat16(), torch.randn(2, 4, 6).bfloat16()
    (wanted, (kept,)), (found, (found_kept,)) = (
        waves.chain([Link(alpha, by_beta, waves.convolution(weight, bias), 6)])(x, (past,)) for waves in both(kernels)
    )
    assert torch.equal(found, wanted)
    assert torch.equal(found_kept, kept)


def test_low_precision_is_summed_in_one_piece(kernels: KernelOps) -> None:
    """Fault: bfloat16 rounded at every tap."""
    weight, bias = torch.randn(6, 4, 7).bfloat16(), torch.randn(6).bfloat16()
    held = torch.randn(2, 4, 40).bfloat16()
    for waves in both(kernels):
        convolve = waves.convolution(weight, bias, 3)
        assert torch.equal(convolve(held, None), F.conv1d(held, weight, bias, dilation=3))
        assert convolve(held[..., :18], None).shape == (2, 6, 0)
        assert waves.upsampling(torch.randn(4, 3, 10).bfloat16(), torch.randn(3).bfloat16())(held, None).shape == (
            2,
            3,
            195,
        )
