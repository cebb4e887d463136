"""The thinker's model: an ARModel that attends to nothing and knows which token follows which (`family.following`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from omnistage.modeling.protocols import Attend
from omnistage.modeling.step import ARStep, StepRows
from tests.sums.family import FAIL, FIRST, PACE_S, following

VOCABULARY = 256


class Thinker:
    num_layers = 1
    num_kv_heads = 1
    head_dim = 8
    hidden_size = 8
    vocab_size = VOCABULARY
    max_positions = 4096
    dtype = torch.float32
    device = torch.device("cpu")

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(token_ids), self.hidden_size)

    def forward(self, step: StepRows, attend: Attend, capture_layers: Sequence[int] = ()) -> ARStep:
        time.sleep(PACE_S)
        nothing = torch.zeros(len(step.tokens), 1, self.head_dim)
        attend(0, nothing, nothing, nothing, scale=1.0)
        if FAIL in step.tokens:
            raise RuntimeError("told to fail")
        logits = torch.zeros(len(step.logit_rows), VOCABULARY)
        for row, token in enumerate(step.tokens[place] for place in step.logit_rows):
            logits[row, following(token) if token >= FIRST else FIRST] = 100.0
        return ARStep(logits, {})


def load(config: Any) -> Thinker:
    return Thinker()
