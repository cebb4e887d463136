"""Decoding beside the steps: order, batches, faults, and what becomes of those who leave."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from omnistage.modeling.diffusion import Denoising
from omnistage.stages.diffusion.decoding import Decoded, FinishedPicture, Job, PartialPicture, PictureDecoder
from omnistage.stages.diffusion.plan import PictureKey


class Runner:
    """Waits for `go` before each call; `calls` are the batches, by the pictures' first latents."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.calls: list[list[int]] = []

    def decode(self, pictures: Sequence[Denoising]) -> list[np.ndarray[Any, Any]]:
        self.entered.release()
        assert self.go.acquire(timeout=10.0), "nobody lets go"
        marks = [int(picture.latents[0]) for picture in pictures]
        self.calls.append(marks)
        if 13 in marks:
            raise ValueError("13 cannot be seen")
        return [np.full((1, 1, 3), mark, np.uint8) for mark in marks]

    def preview(self, picture: Denoising, prediction: torch.Tensor, step: int) -> np.ndarray[Any, Any]:
        return self.decode([picture])[0]


@pytest.fixture
def runner() -> Runner:
    return Runner()


def decoder_of(runner: Any, budget: int = 100, stage: str = "painter") -> PictureDecoder:
    return PictureDecoder(runner, stage=stage, budget=budget)


def job(mark: int, request_id: str = "r", *, shape: str = "s", partial: bool = False, tokens: int = 1) -> Job:
    solver: Any = None
    picture = Denoising(torch.tensor([float(mark)]), (), solver, ())
    if partial:
        return PartialPicture(PictureKey(request_id, 0), picture, torch.zeros(1), 0, 0, tokens)
    return FinishedPicture(PictureKey(request_id, 0), picture, shape, tokens)


def all_of(decoder: PictureDecoder) -> list[Decoded]:
    found: list[Decoded] = []
    while decoder.pending:
        more = decoder.collect(10.0)
        assert more, "nothing came"
        found += more
    return found


def marks(found: list[Decoded]) -> list[int | str]:
    return [str(one.made) if isinstance(one.made, Exception) else int(one.made[0, 0, 0]) for one in found]


def test_jobs_that_wait_together_are_decoded_together_and_in_order(runner: Runner) -> None:
    """Fault: a call larger than the budget, or of two shapes; a finished picture that overtakes a partial one."""
    decoder = decoder_of(runner, budget=3)
    jobs = [job(0), job(1), job(2, tokens=2), job(3), job(4, shape="t"), job(5, partial=True), job(6), job(7)]
    for one in jobs[:1]:
        decoder.submit(one)
    assert runner.entered.acquire(timeout=10.0)
    for one in jobs[1:]:
        decoder.submit(one)
    assert (decoder.pending, decoder.collect()) == (8, [])
    runner.go.release(20)
    assert marks(all_of(decoder)) == list(range(8))
    assert runner.calls == [[0], [1, 2], [3], [4], [5], [6, 7]]


def test_a_picture_that_cannot_be_decoded_fails_alone(runner: Runner) -> None:
    """Fault: one broken picture takes its neighbours with it, or stops the thread."""
    decoder = decoder_of(runner)
    decoder.submit(job(1))
    assert runner.entered.acquire(timeout=10.0)
    for mark in (2, 13, 3):
        decoder.submit(job(mark))
    runner.go.release(20)
    assert marks(all_of(decoder)) == [1, 2, "13 cannot be seen", 3]
    assert decoder.num_reruns == 1


def test_those_who_leave_are_not_decoded(runner: Runner) -> None:
    """Fault: pictures of cancelled requests keep the decoder busy, or are waited for."""
    decoder = decoder_of(runner)
    decoder.submit(job(1, "a"))
    assert runner.entered.acquire(timeout=10.0)
    decoder.submit(job(2, "b"))
    decoder.submit(job(3, "c"))
    decoder.drop("b")
    assert decoder.pending == 2
    assert decoder.running_s() > 0
    runner.go.release(20)
    assert marks(all_of(decoder)) == [1, 3]
    assert (decoder.running_s(), decoder.collect(10.0)) == (0.0, [])


def test_the_thread_ends_with_the_decoder(runner: Runner) -> None:
    """Fault: every engine that was closed in this process leaves a thread, and its model, behind."""
    decoder = decoder_of(runner, stage="leaving")
    runner.go.release()
    decoder.submit(job(1))
    all_of(decoder)
    (thread,) = [one for one in threading.enumerate() if one.name.startswith("decode-leaving")]
    del decoder
    gc.collect()
    thread.join(10.0)
    assert not thread.is_alive()
