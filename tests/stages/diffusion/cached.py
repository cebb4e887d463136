"""Step caches over the fake painter."""

from __future__ import annotations

from typing import Any

import torch

from omnistage.core.params import DiffusionParams
from omnistage.modeling.diffusion import Denoising
from omnistage.stages.diffusion.caches.base import StepCache
from omnistage.stages.diffusion.caches.table import step_cache
from tests.drawing.painter import FakePainter, painter_config
from tests.fakes import request_of

KINDS = {"first_block": "residual_diff_threshold", "tea_cache": "rel_l1_thresh"}


def cache_of(kind: str, threshold: float, model: FakePainter, **more: Any) -> StepCache:
    made = step_cache(painter_config(cache_backend=kind, cache_config={KINDS[kind]: threshold, **more}), model)
    assert made is not None
    return made


def picture_of(model: FakePainter, text: str, seed: int, steps: int = 6) -> Denoising:
    plan = model.plan(request_of(text), DiffusionParams(num_inference_steps=steps), {"text": text})
    return model.prepare(plan, tuple(model.encode(plan.conditions)), torch.Generator().manual_seed(seed))
