"""Requests for pictures that come one by one and wait: `python -m benchmarks.drawing_line TOKENS`, for benchmarks.diffusion.

The same engine twice, with as many requests at a time as its stage has and with one, first come, first served. Both get the same
requests at the same times. Prints one line of JSON.

Time is this process's processor time, as on a processor of its own, and skips what nobody works in; so a busy machine does not
turn four fifths of what can be served into more than all of it. The two take turns of `TURN_S`, so that a machine that becomes
slower does so for both.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.diffusion_workload import LINE_SHAPE, LOAD, SIZES, Size, Wish, arrivals, line, write_model
from benchmarks.drawing_engine import engine_of, request_of

TURN_S = 0.5
WARM_UP = 8
CALIBRATED = 24
"""Requests by whose time the capacity of one at a time is told."""


@dataclass(frozen=True, slots=True)
class Waited:
    """Mean seconds of processor time from arrival to the first step and to the picture; `busy` is what part of its capacity FIFO
    was given."""

    wait_s: float
    fifo_wait_s: float
    whole_s: float
    fifo_whole_s: float
    busy: float


class ClockState:
    """Runs with the processor time of this process, but only between `go` and `stop`."""

    def __init__(self) -> None:
        self._at_s = 0.0
        self._went_s: float | None = None

    def __call__(self) -> float:
        return self._at_s + (0.0 if self._went_s is None else time.process_time() - self._went_s)

    def go(self) -> None:
        self._went_s = time.process_time()

    def stop(self) -> None:
        self._at_s, self._went_s = self(), None

    def skip_to(self, then_s: float) -> None:
        self._at_s += max(0.0, then_s - self())


class LineState:
    """One engine, the requests that have not come yet, and how long the others have waited."""

    def __init__(self, folder: Path, *, seqs: int, budget: int) -> None:
        self._clock = ClockState()
        self._engine = engine_of(folder, clock=self._clock, max_num_seqs=seqs, max_num_batched_tokens=budget)
        self._coming: list[tuple[float, Wish]] = []
        self._came = 0
        self._arrived_s: dict[str, float] = {}
        self._added_s: dict[str, float] = {}
        self.waits_s: list[float] = []
        self.wholes_s: list[float] = []

    def expect(self, wishes: Sequence[Wish], after_s: Sequence[float]) -> None:
        """Wishes that come so many seconds from now."""
        now_s = self._clock()
        self._coming = [(now_s + after, wish) for after, wish in zip(after_s, wishes, strict=True)]
        self.waits_s, self.wholes_s = [], []

    @property
    def is_open(self) -> bool:
        return bool(self._coming) or self._engine.has_work()

    def advance(self, for_s: float) -> float:
        """Serves for about `for_s` seconds or until nobody is left. The seconds that passed."""
        began_s = self._clock()
        self._clock.go()
        while self.is_open and self._clock() < began_s + for_s:
            if not self._engine.has_work():
                self._clock.skip_to(self._coming[0][0])
            self._take()
            self._step()
        self._clock.stop()
        return self._clock() - began_s

    def _take(self) -> None:
        while self._coming and self._coming[0][0] <= self._clock():
            arrived_s, wish = self._coming.pop(0)
            name = str(self._came)
            self._arrived_s[name], self._added_s[name] = arrived_s, self._clock()
            self._engine.add(request_of(name, wish, self._came))
            self._came += 1

    def _step(self) -> None:
        for output in self._engine.step():
            assert output.error is None, output.error
            if output.finish_reason is not None:
                name = output.request_id
                arrived_s = self._arrived_s.pop(name)
                self.waits_s.append(self._added_s.pop(name) - arrived_s + output.times.queued_s)
                self.wholes_s.append(self._clock() - arrived_s)


def waited(size: Size, folder: Path) -> Waited:
    asked = line(size)
    ours = LineState(folder, seqs=size.seqs, budget=size.budget)
    fifo = LineState(folder, seqs=1, budget=size.budget)
    for side in (ours, fifo):
        side.expect(asked[:WARM_UP], [0.0] * WARM_UP)
        side.advance(float("inf"))
    fifo.expect(asked[:CALIBRATED], [0.0] * CALIBRATED)
    one_s = fifo.advance(float("inf")) / sum(wish.steps for wish in asked[:CALIBRATED])
    whole_s = one_s * sum(wish.steps for wish in asked)  # of all, one after another
    times = arrivals(LOAD * len(asked) / whole_s, len(asked))
    for side in (ours, fifo):
        side.expect(asked, times)
    while ours.is_open or fifo.is_open:
        for side in (ours, fifo):
            side.advance(TURN_S)
    return Waited(
        statistics.fmean(ours.waits_s),
        statistics.fmean(fifo.waits_s),
        statistics.fmean(ours.wholes_s),
        statistics.fmean(fifo.wholes_s),
        whole_s / times[-1],
    )


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        found = waited(SIZES[int(sys.argv[1])], write_model(LINE_SHAPE, Path(scratch)))
    print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()
