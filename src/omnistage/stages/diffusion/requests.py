"""One request in a diffusion stage, and its pictures: values that the request owns. Times in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from omnistage.core.params import DiffusionParams
from omnistage.core.request import StageTimes, Usage
from omnistage.modeling.diffusion import Denoising, PicturePlan
from omnistage.stages.base import StageRequest
from omnistage.stages.diffusion.caches.base import Memory
from omnistage.stages.inbox import InboxState
from omnistage.wire.messages import CLIENT


@dataclass(slots=True)
class PictureRun:
    """One picture between its preparation and its decoding. `step` is the next one; `memories`: what a step cache remembers of each
    branch."""

    seed: int
    guidance: float
    denoising: Denoising
    memories: list[Memory | None]
    step: int = 0

    @property
    def num_steps(self) -> int:
        return len(self.denoising.timesteps)


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a step has done for a picture: the prediction that its solver got, and the latents that it was made from."""

    latents: torch.Tensor
    prediction: torch.Tensor


@dataclass(slots=True)
class RequestState:
    """`plan` None: its input has not come yet. `asked`: its conditions have been asked for; `encoded`: those that are there, by
    key. `left`: pictures that have not been handed out. `queued_until_s`: when its first denoising step began. `calls` of the model
    for it: when they began and ended."""

    request: StageRequest
    params: DiffusionParams
    inbox: InboxState
    added_s: float
    prepare_s: float | None = None
    plan: PicturePlan | None = None
    asked: bool = False
    encoded: dict[str, Any] = field(default_factory=dict)
    pictures: list[PictureRun] = field(default_factory=list)
    left: int = 0
    ready: bool = True
    queued_until_s: float | None = None
    calls: list[tuple[float, float]] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """All that came in has been used, and all that it makes is out."""
        return self.inbox.exhausted and self.left == 0

    @property
    def hears_steps(self) -> bool:
        """Whether its caller is told how far its pictures are."""
        return self.request.request.stream and CLIENT in self.request.active_targets

    def usage(self) -> Usage:
        return Usage(images=0 if self.plan is None else self.params.n)

    def times(self, now_s: float) -> StageTimes:
        began_s = now_s if self.queued_until_s is None else self.queued_until_s
        return StageTimes(
            queued_s=began_s - self.added_s,
            prepare_s=self.prepare_s,
            running_s=now_s - began_s,
            forward_s=covered_s(self.calls, began_s),
        )


def covered_s(spans: Iterable[tuple[float, float]], from_s: float) -> float:
    """Seconds after `from_s` that lie in at least one span: a picture is decoded while others take steps."""
    total_s = 0.0
    for began_s, ended_s in sorted(spans):
        total_s += max(0.0, ended_s - max(began_s, from_s))
        from_s = max(from_s, ended_s)
    return total_s


def preview_steps(num_steps: int, partial_images: int) -> dict[int, int]:
    """After how many steps which partial picture (0, 1, ...) is shown: evenly spread, none after the last step."""
    shown = [round(num_steps * (place + 1) / (partial_images + 1)) for place in range(partial_images)]
    return {step: place for place, step in enumerate(dict.fromkeys(step for step in shown if 0 < step < num_steps))}
