"""One sequence through a model in a single step: the least that a model needs to run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from omnistage.modeling.attention import PagedCache, StepMeta
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.paged_attend import PagedAttend
from omnistage.modeling.protocols import ARModel, ARStep
from omnistage.stages.ar.runner import cache_shape

BLOCK = 8


def run_whole(
    model: ARModel,
    ids: Sequence[int],
    *,
    embeds: bool = False,
    layers: Sequence[int] = (),
    ops: TorchOps | None = None,
) -> ARStep:
    """Logits of every row of `ids`, and the hidden states of `layers`."""
    blocks = -(-len(ids) // BLOCK)
    cache = PagedCache(cache_shape(model, BLOCK), blocks + 1)
    table = np.arange(1, blocks + 1, dtype=np.int32)[None]
    meta, positions = StepMeta.of(table, np.array([0]), np.array([0]), np.array([len(ids)]), BLOCK, model.device)
    token_ids = torch.tensor(list(ids))
    with torch.inference_mode():
        return model.forward(
            token_ids=None if embeds else token_ids,
            embeds=model.embed(token_ids) if embeds else None,
            positions=positions,
            attend=PagedAttend(cache, meta, ops or TorchOps()),
            logit_rows=torch.arange(len(ids)),
            capture_layers=layers,
        )
