"""Streaming convolutions: any chunking gives the one-shot result, and states are values.

Faults pinned: samples lost or doubled at chunk borders, a bias added twice where outputs overlap, a state changed in place,
states of different requests mixed up in a batch.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.modeling.streaming import (
    StreamState,
    causal_conv1d,
    causal_conv1d_state,
    shape_key,
    split_states,
    stack_states,
    transposed_conv1d,
    transposed_conv1d_state,
)

TOLERANCE = 1e-6
CUTS = st.lists(st.integers(0, 7), max_size=8)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def chunked(
    layer: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    signal: torch.Tensor,
    state: torch.Tensor,
    cuts: list[int],
) -> torch.Tensor:
    """`signal` through `layer` in chunks of the sizes `cuts`, and the rest."""
    outs = []
    for size in [*cuts, signal.shape[-1]]:
        out, state = layer(signal[..., :size], state)
        signal = signal[..., size:]
        outs.append(out)
    return torch.cat(outs, dim=-1)


@given(
    cuts=CUTS,
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 3),
    groups=st.sampled_from([1, 2]),
)
@settings(max_examples=80, deadline=None)
def test_a_causal_convolution_does_not_depend_on_the_chunking(
    cuts: list[int], kernel: int, stride: int, dilation: int, groups: int
) -> None:
    """Fault: the left context is lost, or seen twice, at a border."""
    stride = min(stride, (kernel - 1) * dilation + 1)
    weight, bias = noise(4, 4 // groups, kernel), noise(4, seed=1)
    signal = noise(2, 4, 29, seed=2)
    options = {"stride": stride, "dilation": dilation, "groups": groups}
    padding = (kernel - 1) * dilation + 1 - stride
    expected = F.conv1d(F.pad(signal, (padding, 0)), weight, bias, **options)
    state = causal_conv1d_state(weight, batch=2, **options)
    out = chunked(lambda chunk, held: causal_conv1d(chunk, held, weight, bias, **options), signal, state, cuts)
    assert out.shape == expected.shape
    assert torch.allclose(out, expected, rtol=0, atol=TOLERANCE)


@given(cuts=CUTS, stride=st.integers(1, 4), extra=st.integers(0, 6), groups=st.sampled_from([1, 2]))
@settings(max_examples=80, deadline=None)
def test_a_transposed_convolution_does_not_depend_on_the_chunking(
    cuts: list[int], stride: int, extra: int, groups: int
) -> None:
    """Fault: overlapping outputs are dropped at a border, or get their bias twice."""
    weight, bias = noise(4, 6 // groups, stride + extra), noise(6, seed=1)
    signal = noise(2, 4, 17, seed=2)
    whole = F.conv_transpose1d(signal, weight, bias, stride=stride, groups=groups)
    expected = whole[..., : 17 * stride]
    state = transposed_conv1d_state(weight, stride=stride, batch=2, groups=groups)
    out = chunked(
        lambda chunk, held: transposed_conv1d(chunk, held, weight, bias, stride=stride, groups=groups),
        signal,
        state,
        cuts,
    )
    assert out.shape == expected.shape
    assert torch.allclose(out, expected, rtol=0, atol=TOLERANCE)


def test_a_given_state_is_not_changed() -> None:
    """Fault: a run that failed, or is run again, begins from another state than the first time."""
    weight = noise(3, 3, 4)
    chunk = noise(1, 3, 5)
    for layer, state in (
        (causal_conv1d, noise(1, 3, 3, seed=1)),
        (lambda *given: transposed_conv1d(*given, stride=2), noise(1, 3, 2, seed=1)),
    ):
        before = state.clone()
        first, _ = layer(chunk, state, weight)
        again, _ = layer(chunk, state, weight)
        assert torch.equal(state, before)
        assert torch.equal(first, again)


def test_a_state_does_not_keep_the_chunk_alive() -> None:
    """Fault: a parked request holds the memory of everything it was fed."""
    weight = noise(1, 1, 3)
    _, state = causal_conv1d(noise(1, 1, 1000), causal_conv1d_state(weight), weight)
    assert state.untyped_storage().nbytes() == state.nbytes


def test_states_are_stacked_and_split_request_by_request() -> None:
    """Fault: one request goes on with another's state, or with a view into a whole batch."""
    states: list[StreamState] = [(noise(1, 2, 3, seed=seed), (noise(1, 4, 1, seed=seed),)) for seed in (0, 1, 2)]
    parts = split_states(stack_states(states), 3)
    for state, part in zip(states, parts, strict=True):
        assert isinstance(state, tuple)
        assert isinstance(part, tuple)
        assert isinstance(part[0], torch.Tensor)
        assert isinstance(state[0], torch.Tensor)
        assert torch.equal(part[0], state[0])
        assert part[0].untyped_storage().nbytes() == part[0].nbytes


@pytest.mark.parametrize(("other", "equal"), [((1, 2, 3), True), ((1, 2, 4), False)])
def test_the_shape_key_tells_what_can_be_stacked(other: tuple[int, ...], equal: bool) -> None:
    """Fault: requests whose states do not fit together share a batch."""
    assert (shape_key((noise(1, 2, 3),)) == shape_key((noise(*other),))) is equal
