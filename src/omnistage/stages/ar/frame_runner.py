"""What a runner does for a framed model beside its forward pass: input rows of frames, and whole frames of what was sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.protocols import FramedModel
from omnistage.modeling.sampling import Sampled, SampleRow
from omnistage.stages.ar.plan import PlanRow, StepPlan


class FrameRunner:
    """Stateless: `ops` are those of the step."""

    def __init__(self, model: FramedModel) -> None:
        self._model = model

    @torch.inference_mode()
    def prompt_rows(self, data: Mapping[str, Any], ops: TorchOps) -> torch.Tensor:
        """[n, hidden], of what a bridge wrote."""
        return self._model.embed_prompt(data, ops)

    def input_rows(self, plan: StepPlan, held: Callable[[PlanRow], torch.Tensor], ops: TorchOps) -> torch.Tensor:
        """[T, hidden]: of each row what is `held` of its prompt, then its frames."""
        fed = list(chain.from_iterable(row.frames for row in plan.rows))
        made = self._model.embed_frames([frame.codes for frame in fed], [frame.side for frame in fed], ops)
        if len(fed) == sum(len(row.tokens) for row in plan.rows):
            return made  # a step that only decodes
        parts: list[torch.Tensor] = []
        at = 0
        for row in plan.rows:
            parts += [held(row), made[at : at + len(row.frames)]]
            at += len(row.frames)
        return torch.cat(parts)

    def complete(
        self, hidden: torch.Tensor, sampled: Sequence[Sampled], rows: Sequence[SampleRow], ops: TorchOps
    ) -> list[tuple[Sampled, tuple[int, ...] | None]]:
        """`hidden` [R, hidden] is what R tokens were drawn from -> each with its frame. A token that ends has none; where the
        model finds none although it should, there is no token either."""
        ends = self._model.eos_token_ids
        begun = [(place, made.token) for place, made in enumerate(sampled) if made.token not in ends]
        begun = [(place, token) for place, token in begun if token is not None]
        found: list[tuple[Sampled, tuple[int, ...] | None]] = [(made, None) for made in sampled]
        if not begun:
            return found
        at, tokens = zip(*begun, strict=True)
        wanted = hidden if len(at) == len(sampled) else hidden[list(at)]
        frames = self._model.complete(wanted, tokens, [rows[place] for place in at], ops)
        for place, frame in zip(at, frames, strict=True):
            found[place] = (sampled[place] if frame is not None else Sampled(None), frame)
        return found
