"""What the benchmarks of Qwen3-Omni ask for stays what it is: other requests would make rows that look faster or slower."""

import hashlib

import pytest

from benchmarks.omni_workload import CONCURRENCY, FIRST_SOUND, REQUESTS, SHAPES, asks


@pytest.mark.parametrize(("model", "digest"), [("tiny", "14fc670326c6ef0e"), ("100m", "722a64cedf66e1de")])
def test_requests_are_those_that_earlier_rows_were_measured_with(model: str, digest: str) -> None:
    """Fault: a workload that was made easier with the code that is measured."""
    told = repr([(ask.question, ask.text_tokens, ask.frames) for ask in asks(model)])
    assert hashlib.blake2b(told.encode(), digest_size=8).hexdigest() == digest


def test_numbers_of_the_rows() -> None:
    """Fault: fewer requests, less concurrency, a shorter answer, another model behind the same row's name."""
    assert (REQUESTS, CONCURRENCY) == (32, 16)
    assert FIRST_SOUND == {"text_tokens": 64, "frames": 200}
    assert (SHAPES["100m"].hidden, SHAPES["100m"].layers, SHAPES["100m"].talker_layers) == (512, 8, 4)
    assert (SHAPES["100m"].groups, SHAPES["100m"].experts, SHAPES["100m"].decoder_dim) == (16, 8, 448)
