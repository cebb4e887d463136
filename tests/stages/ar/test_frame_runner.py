"""Input rows of a step of frames, and the frames of what a step drew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from omnistage.core.params import SamplingParams
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.sampling import Sampled, SampleRow
from omnistage.stages.ar.frame_runner import FrameRunner
from omnistage.stages.ar.frames import FedFrame
from omnistage.stages.ar.plan import PlanRow, SequenceKey, StepPlan

END, BROKEN = 1, 3


class Spelt:
    """Rows and frames that say what they were made of."""

    eos_token_ids = frozenset({END})
    pad_side = 0

    def embed_prompt(self, data: Mapping[str, Any], ops: TorchOps) -> torch.Tensor:
        return torch.tensor(data["rows"])

    def embed_frames(self, frames: Sequence[Sequence[int]], sides: Sequence[int], ops: TorchOps) -> torch.Tensor:
        return torch.tensor([[*frame, side] for frame, side in zip(frames, sides, strict=True)]).view(-1, 3).float()

    def complete(
        self, hidden: torch.Tensor, tokens: Sequence[int], draws: Sequence[SampleRow], ops: TorchOps
    ) -> list[tuple[int, ...] | None]:
        rows = zip(tokens, hidden.tolist(), draws, strict=True)
        return [None if token == BROKEN else (token, int(row[0]), draw.position) for token, row, draw in rows]


RUNNER = FrameRunner(Spelt())


def plan_row(name: str, start: int, count: int, *frames: FedFrame) -> PlanRow:
    return PlanRow(SequenceKey(name, 0), 0, start, (0,) * count, 0, (), samples=True, frames=frames)


def test_a_row_begins_with_what_is_held_of_its_prompt() -> None:
    """Fault: a sequence that is computed again is fed its frames at the places of its prompt, or another's."""
    held = {"a": [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]], "b": [[3.0, 3.0, 3.0]]}
    plan = StepPlan(
        (
            plan_row("c", 7, 1, FedFrame((7, 8), 9)),
            plan_row("a", 0, 4, FedFrame((10, 11), 12), FedFrame((13, 14), 15)),
            plan_row("b", 0, 1),
        )
    )
    rows = RUNNER.input_rows(plan, lambda row: torch.tensor(held.get(row.key.request_id, [])).view(-1, 3), TorchOps())
    assert rows.tolist() == [[7, 8, 9], *held["a"], [10, 11, 12], [13, 14, 15], *held["b"]]
    only = RUNNER.input_rows(StepPlan(plan.rows[:1]), lambda _row: torch.empty(0, 3), TorchOps())
    assert only.tolist() == [[7, 8, 9]]


def test_frames_belong_to_the_tokens_that_go_on() -> None:
    """Fault: an end shifts the frames of those behind it; a frame that was not found is handed on with its token."""
    hidden = torch.tensor([[10.0], [20.0], [30.0], [40.0], [50.0]])
    sampled = [Sampled(5), Sampled(END), Sampled(None), Sampled(BROKEN), Sampled(6)]
    draws = [SampleRow(SamplingParams(), 0, position) for position in range(5)]
    assert RUNNER.complete(hidden, sampled, draws, TorchOps()) == [
        (Sampled(5), (5, 10, 0)),
        (Sampled(END), None),
        (Sampled(None), None),
        (Sampled(None), None),
        (Sampled(6), (6, 50, 4)),
    ]
    assert RUNNER.complete(hidden[:1], [Sampled(END)], draws[:1], TorchOps()) == [(Sampled(END), None)]
