"""Pictures are decoded in a thread of their own, beside the denoising steps of others: torch lets go of the interpreter meanwhile.

Jobs are done in the order in which they came; finished pictures of equal shape that wait one behind the other are decoded together,
within the budget. A call that fails is made again, one by one, once. The thread ends with the decoder, whose methods belong to the
step thread. Knows no requests but by name.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from omnistage.modeling.diffusion import Denoising
from omnistage.stages.careful import CarefulCalls
from omnistage.stages.diffusion.plan import PictureKey
from omnistage.stages.diffusion.runner import DiffusionRunner


@dataclass(frozen=True, slots=True)
class FinishedPicture:
    """To be decoded. `shape` and `tokens`: as the scheduler has them."""

    key: PictureKey
    picture: Denoising
    shape: Hashable
    tokens: int


@dataclass(frozen=True, slots=True)
class PartialPicture:
    """To be shown before it is finished, as number `partial` (0, 1, ...) of its picture, after `step`. `picture` is a copy: the
    original goes on."""

    key: PictureKey
    picture: Denoising
    prediction: torch.Tensor
    step: int
    partial: int
    tokens: int


Job = FinishedPicture | PartialPicture


@dataclass(frozen=True, slots=True)
class Decoded:
    """What came of a job, in a call (of its whole batch) that began and ended then."""

    job: Job
    made: npt.NDArray[np.uint8] | Exception
    call: tuple[float, float]


class PictureDecoder:
    """See the module. `budget`: tokens of the pictures of one call; one picture may have more."""

    def __init__(
        self, runner: DiffusionRunner, *, stage: str, budget: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._runner = runner
        self._budget = budget
        self._clock = clock
        self._calls = CarefulCalls(stage)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"decode-{stage}")
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._began_s: float | None = None
        self._done: queue.SimpleQueue[Decoded] = queue.SimpleQueue()
        self._pending = 0

    @property
    def pending(self) -> int:
        """Jobs of which nothing has been collected yet."""
        return self._pending

    @property
    def num_reruns(self) -> int:
        return self._calls.num_reruns

    def running_s(self) -> float:
        """For how long the current call has been running; 0 between calls."""
        began_s = self._began_s
        return 0.0 if began_s is None else self._clock() - began_s

    def submit(self, job: Job) -> None:
        self._pending += 1
        with self._lock:
            self._waiting.append(job)
        self._thread.submit(self._work)

    def drop(self, request_id: str) -> None:
        """Forgets the jobs of a request that have not begun; what comes of others is for nobody."""
        with self._lock:
            left = [job for job in self._waiting if job.key.request_id != request_id]
            self._pending -= len(self._waiting) - len(left)
            self._waiting = deque(left)

    def collect(self, wait_s: float | None = 0.0) -> list[Decoded]:
        """What is done. Waits for the first of it, at most for `wait_s`; None: until there is one."""
        found: list[Decoded] = []
        if self._pending and wait_s != 0.0:
            try:
                found.append(self._done.get(timeout=wait_s))
            except queue.Empty:
                return []
        while not self._done.empty():  # nobody else takes from it
            found.append(self._done.get_nowait())
        self._pending -= len(found)
        return found

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """One call for whatever waits first; nothing where a call before has taken it along."""
        batch = self._take()
        if not batch:
            return
        self._began_s = began_s = self._clock()
        made = self._calls.made("decoding", self._call, batch)
        call = (began_s, self._clock())
        self._began_s = None
        for job, picture in zip(batch, made, strict=True):
            self._done.put(Decoded(job, picture, call))

    def _take(self) -> list[Job]:
        """The job that waits first, and those right behind it that can share its call. Nothing overtakes: a picture's last state
        would come before its partial ones."""
        with self._lock:
            batch: list[Job] = []
            left = self._budget
            while self._waiting and (not batch or _share(batch[0], self._waiting[0], left)):
                batch.append(self._waiting.popleft())
                left -= batch[-1].tokens
            return batch

    def _call(self, batch: Sequence[Job]) -> list[npt.NDArray[np.uint8]]:
        match batch[0]:
            case PartialPicture(picture=picture, prediction=prediction, step=step):
                return [self._runner.preview(picture, prediction, step)]
            case _:
                return self._runner.decode([job.picture for job in batch])


def _share(first: Job, job: Job, left: int) -> bool:
    """Whether `job` can be decoded with `first`, where `left` tokens are to spare."""
    match first, job:
        case FinishedPicture(), FinishedPicture():
            return job.shape == first.shape and job.tokens <= left
        case _:
            return False
