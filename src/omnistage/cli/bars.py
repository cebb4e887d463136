"""What a terminal shows of work that takes its time: how far stages have loaded, and pictures have been drawn.

Nothing is shown where stderr is no terminal. Knows no model and no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from omnistage.runtime.base import ReplicaStatus

_PERCENT = "{desc}: {percentage:3.0f}% {bar}"
_STEPS = "{desc}: {n_fmt}/{total_fmt} {bar} {elapsed}<{remaining}"


class LoadingBar:
    """Of all replicas together."""

    def __init__(self) -> None:
        self._bar: Any = tqdm(total=100, desc="loading", bar_format=_PERCENT, leave=False, disable=None)

    def show(self, replicas: Sequence[ReplicaStatus]) -> None:
        done = sum(1.0 if replica.state == "ready" else replica.progress for replica in replicas)
        self._bar.n = int(100 * done / max(1, len(replicas)))
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()


class DrawingBar:
    """Of the denoising steps of all pictures of a request."""

    def __init__(self, pictures: int) -> None:
        self._pictures = pictures
        self._steps: dict[int, int] = {}
        self._bar: Any = None

    @property
    def steps(self) -> int:
        """Steps that have been made."""
        return sum(self._steps.values())

    def show(self, progress: Mapping[str, int]) -> None:
        """`step` of `steps` of picture `index` has been made."""
        self._steps[progress["index"]] = progress["step"]
        if self._bar is None:
            total = self._pictures * progress["steps"]
            self._bar = tqdm(total=total, desc="drawing", bar_format=_STEPS, leave=False, disable=None)
        self._bar.n = self.steps
        self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
