"""One sequence through a model in a single step: the least that a model needs to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from omnistage.modeling.attention import PagedCache
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.paged_attend import PagedAttend
from omnistage.modeling.protocols import ARModel
from omnistage.modeling.step import ARStep, BlockTable, StepRows
from omnistage.stages.ar.runner import cache_shape

BLOCK = 16
"""What kernels serve: a whole number of vectors."""


def run_whole(
    model: ARModel,
    ids: Sequence[int],
    *,
    embeds: bool = False,
    layers: Sequence[int] = (),
    ops: TorchOps | None = None,
    layered: Mapping[int, torch.Tensor] | None = None,
) -> ARStep:
    """Logits of every row of `ids`, and the hidden states of `layers`."""
    blocks = -(-len(ids) // BLOCK)
    cache = PagedCache(cache_shape(model, BLOCK), blocks + 1)
    table = BlockTable.of([range(1, blocks + 1)])
    step = StepRows(table, [0], [0], [len(ids)], BLOCK, model.device, ids, range(len(ids)))
    step.layered = layered or {}
    if embeds:
        step.embeds = model.embed(step.token_ids)
    return model.forward(step, PagedAttend(cache, step, ops or TorchOps()), layers)
