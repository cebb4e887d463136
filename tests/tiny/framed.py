"""A framed model over a tiny decoder: frames of three codes, of which the last two follow from what the first was drawn from.

A side is a token of the decoder's own vocabulary, and so is a code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omnistage.core.payload import MultimodalPayload
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.philox import uniforms
from omnistage.modeling.protocols import ARModel, StageInput
from omnistage.modeling.sampling import SampleRow
from omnistage.models.causal_lm.loader import load
from omnistage.stages.ar.build import ar_engine
from omnistage.stages.ar.engine import ARStageEngine
from tests.tiny.checkpoints import VOCAB_SIZE
from tests.tiny.engines import stage_config

END, PAD = 1, 2
BROKEN = 3
"""A first code of which no frame can be made."""


class FramedDecoder:
    """`model` with frames."""

    def __init__(self, model: ARModel) -> None:
        self._model = model
        self.eos_token_ids = frozenset({END})
        self.pad_side = PAD

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def embed_prompt(self, data: Mapping[str, Any], ops: TorchOps) -> torch.Tensor:
        return self._model.embed(torch.tensor(data["ids"]))

    def embed_frames(self, frames: Sequence[Sequence[int]], sides: Sequence[int], ops: TorchOps) -> torch.Tensor:
        rows = [
            self._model.embed(torch.tensor([*frame, side])).sum(dim=0)
            for frame, side in zip(frames, sides, strict=True)
        ]
        return torch.stack(rows) if rows else torch.empty(0, self._model.hidden_size)

    def complete(
        self, hidden: torch.Tensor, tokens: Sequence[int], draws: Sequence[SampleRow], ops: TorchOps
    ) -> list[tuple[int, ...] | None]:
        return [self._frame(*row) for row in zip(hidden, tokens, draws, strict=True)]

    @staticmethod
    def _frame(hidden: torch.Tensor, token: int, draw: SampleRow) -> tuple[int, ...] | None:
        if token == BROKEN:
            return None
        second = int(hidden.argmax())
        seeds, positions = np.array([draw.seed], np.uint64), np.array([draw.position], np.uint64)
        chance = uniforms(seeds, positions, np.array([[draw.stream[0], 1]], np.uint32))[0]
        return token, second, second if draw.params.greedy else int(chance * VOCAB_SIZE)


def written_bridge(state: Any, _source: int, _seq: int, payload: MultimodalPayload | None, _last: bool) -> Any:
    """What an item's metadata writes, as it is."""
    return state, [] if payload is None else [StageInput(dict(written)) for written in payload.metadata["inputs"]]


def framed_engine(folder: Path, **changes: Any) -> ARStageEngine:
    config = stage_config(folder, input_sources=(0,), bridge="tests:unused", processor=None, **changes)
    return ar_engine(config, FramedDecoder(load(config)), None, written_bridge)


def feed(engine: ARStageEngine, name: str, seq: int, *inputs: dict[str, Any], last: bool = False) -> None:
    item = MultimodalPayload(metadata={"inputs": list(inputs)}) if inputs else None
    engine.feed(name, 0, seq, item, last=last)
