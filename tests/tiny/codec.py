"""A tiny streaming codec decoder with fixed random weights: codes in, samples out, `HOP` per frame. For tests.

`load` is a loader hook for a generation stage, `codes_bridge` its bridge: payloads carry "codes" [frames] (int64). A code of
BROKEN makes a run raise.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from omnistage.config.stage import StageConfig
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.request import OmniRequest
from omnistage.modeling.protocols import StageInput
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

CODES = 32
CHANNELS = 8
HOP = 8
SAMPLE_RATE = 800
BROKEN = 31


class TinyCodec:
    """Embedding, causal convolution, two transposed ones (4 x 2 samples per frame) with a dilated one between."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(seed)

        def weight(*shape: int, fan_in: int = 1) -> torch.Tensor:
            """Scaled so that activations stay near 1, as in trained layers: larger ones amplify rounding."""
            return torch.randn(shape, generator=generator).div(math.sqrt(fan_in)).to(dtype)

        self.embedding = weight(CODES, CHANNELS)
        self.inward = weight(CHANNELS, CHANNELS, 3, fan_in=CHANNELS * 3)
        self.coarse = weight(CHANNELS, CHANNELS, 9, fan_in=CHANNELS * 9 // 4)
        self.coarse_bias = weight(CHANNELS, fan_in=4)
        self.middle = weight(CHANNELS, CHANNELS, 5, fan_in=CHANNELS * 5)
        self.middle_bias = weight(CHANNELS, fan_in=4)
        self.fine = weight(CHANNELS, 1, 4, fan_in=CHANNELS * 4 // 2)

    def begin(self, request: OmniRequest, params: Any) -> StreamState:
        return (
            causal_conv1d_state(self.inward),
            transposed_conv1d_state(self.coarse, stride=4),
            causal_conv1d_state(self.middle, dilation=2),
            transposed_conv1d_state(self.fine, stride=2),
        )

    def batch_key(self, chunk: Mapping[str, Any], state: StreamState) -> object:
        return len(chunk["codes"]), shape_key(state)

    def cost(self, chunk: Mapping[str, Any]) -> int:
        return len(chunk["codes"])

    def run(self, batch: Sequence[tuple[Mapping[str, Any], StreamState]]) -> list[tuple[MultimodalPayload | None, Any]]:
        codes = torch.stack([chunk["codes"] for chunk, _ in batch])  # [batch, frames]
        if (codes == BROKEN).any():
            raise ValueError(f"code {BROKEN} cannot be decoded")
        audio, state = self.decode(codes, stack_states([state for _, state in batch]))
        made = [MultimodalPayload({"audio": Tensor.of(row.numpy())}, {"sample_rate": SAMPLE_RATE}) for row in audio]
        return list(zip(made, split_states(state, len(batch)), strict=True))

    def interrupt(self) -> None: ...

    @torch.inference_mode()
    def decode(self, codes: torch.Tensor, state: Any) -> tuple[torch.Tensor, StreamState]:
        """[batch, frames] -> [batch, frames * HOP] and the new state."""
        inward, coarse, middle, fine = state
        hidden = self.embedding[codes].transpose(1, 2)  # [batch, channels, frames]
        hidden, inward = causal_conv1d(hidden, inward, self.inward)
        hidden, coarse = transposed_conv1d(F.elu(hidden), coarse, self.coarse, self.coarse_bias, stride=4)
        hidden, middle = causal_conv1d(F.elu(hidden), middle, self.middle, self.middle_bias, dilation=2)
        hidden, fine = transposed_conv1d(F.elu(hidden), fine, self.fine, stride=2)
        return torch.tanh(hidden[:, 0]), (inward, coarse, middle, fine)


def load(config: StageConfig) -> TinyCodec:
    return TinyCodec(config.extras.get("seed", 0))


def codes_bridge(
    state: None, source: int, seq: int, payload: MultimodalPayload | None, last: bool
) -> tuple[None, list[StageInput]]:
    """One input per payload with frames; the codes are copied, the payload's memory is not kept."""
    if payload is None or not payload.tensors["codes"].spec.shape[0]:
        return None, []
    codes = torch.tensor(payload.numpy("codes"))
    return None, [StageInput({"codes": codes}, codes.nbytes)]
