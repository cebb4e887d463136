"""Convolutions over time as pure functions `(chunk, state) -> (out, state)`: any chunking gives the one-shot result.

The state is a value outside of any module: the end of the input that later outputs still need (causal convolution), or the
part of the output that later inputs still add to (transposed convolution). It begins as zeros, is never changed in place,
and can be kept, parked, stacked with others of equal shapes and split again. No work is done twice, no sample is lost.

Shapes: chunks [batch, channels, time], time may be 0 and may differ from call to call; weights as torch.nn.functional has
them. Chunkings agree within float32 rounding. Knows no model and no request.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

StreamState = torch.Tensor | tuple["StreamState", ...]
"""One tensor per streaming layer, nested as a model likes; the first axis of each is the batch."""


def causal_conv1d_state(
    weight: torch.Tensor, *, batch: int = 1, stride: int = 1, dilation: int = 1, groups: int = 1
) -> torch.Tensor:
    """What a causal convolution begins with: `span - stride` zeros, so that every `stride` inputs make one output."""
    span = _span(weight, dilation)
    assert span >= stride, "a stride larger than the kernel's span skips inputs"
    return weight.new_zeros(batch, weight.shape[1] * groups, span - stride)


def causal_conv1d(
    chunk: torch.Tensor,
    state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`weight` [out, in / groups, kernel]. Makes every output whose inputs are there; the state is the inputs that later
    outputs need, at least `span - stride` and fewer than `span` of them, where span = (kernel - 1) * dilation + 1."""
    held = torch.cat((state, chunk), dim=-1)  # [batch, in, state + time]
    outputs = max(0, (held.shape[-1] - _span(weight, dilation)) // stride + 1)
    kept = held[..., outputs * stride :].clone()
    if outputs == 0:
        return held.new_zeros(held.shape[0], weight.shape[0], 0), kept
    return F.conv1d(held, weight, bias, stride=stride, dilation=dilation, groups=groups), kept


def transposed_conv1d_state(weight: torch.Tensor, *, stride: int, batch: int = 1, groups: int = 1) -> torch.Tensor:
    """What a transposed convolution begins with: `kernel - stride` zeros to add to."""
    kernel = weight.shape[-1]
    assert kernel >= stride, "a stride larger than the kernel leaves gaps"
    return weight.new_zeros(batch, weight.shape[1] * groups, kernel - stride)


def transposed_conv1d(
    chunk: torch.Tensor,
    state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int,
    groups: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`weight` [in, out / groups, kernel]. Makes `stride` outputs for every input; the state is the `kernel - stride`
    outputs to which later inputs still add. The bias is added when an output leaves, once."""
    ready = chunk.shape[-1] * stride
    if ready == 0:
        return state[..., :0], state
    made = F.conv_transpose1d(chunk, weight, stride=stride, groups=groups)  # [batch, out, ready + kernel - stride]
    made[..., : state.shape[-1]] += state
    out = made[..., :ready]
    return (out if bias is None else out + bias[:, None]), made[..., ready:].clone()


def stack_states(states: Sequence[StreamState]) -> StreamState:
    """States of several requests, of equal shapes, as one along the first axis; of one request its own."""
    if len(states) == 1:
        return states[0]
    first = states[0]
    if isinstance(first, torch.Tensor):
        return torch.cat([state for state in states if isinstance(state, torch.Tensor)])
    columns = zip(*(state for state in states if isinstance(state, tuple)), strict=True)
    return tuple(stack_states(column) for column in columns)


def split_states(state: StreamState, count: int) -> list[StreamState]:
    """The reverse of `stack_states` for states of one request each. Each of several parts owns its memory."""
    if count == 1:
        return [state]
    if isinstance(state, torch.Tensor):
        return [state[index : index + 1].clone() for index in range(count)]
    columns = [split_states(member, count) for member in state]
    return [tuple(column[index] for column in columns) for index in range(count)]


def shape_key(state: StreamState) -> tuple[object, ...]:
    """Equal for states that can be stacked: derived from their shapes, nothing to keep by hand."""
    if isinstance(state, torch.Tensor):
        return tuple(state.shape[1:])
    return tuple(shape_key(member) for member in state)


def _span(weight: torch.Tensor, dilation: int) -> int:
    """Inputs that one output sees, from the first to the last."""
    return (weight.shape[-1] - 1) * dilation + 1
