"""Whose media are encoded next, and what becomes of a call that fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from omnistage.core.errors import StageFailedError
from omnistage.modeling.protocols import EncodedMedia, MediaInput
from omnistage.stages.ar.encoding import EncodingQueue, MediaEncoder


def media(key: str, tokens: int = 4) -> MediaInput:
    return MediaInput("image", key, ((0, tokens),), tokens, {})


def keys(queue: EncodingQueue) -> str:
    return "".join(one.key for one in queue.batch())


def test_the_oldest_go_first_and_equal_media_once() -> None:
    """Fault: a later request overtakes, a picture of two requests is encoded twice, or a call is larger than a step may be."""
    queue = EncodingQueue(10)
    queue.add("late", (0, 2), [media("x"), media("b")])
    queue.add("early", (0, 1), [media("a"), media("b"), media("a")])
    assert keys(queue) == "ab"
    assert queue.requests_of("b") == ["late", "early"]
    assert not queue.take("early", "a")
    assert queue.take("early", "b")
    assert keys(queue) == "xb"
    assert not queue.take("late", "b")
    queue.remove("late")
    queue.remove("unknown")
    assert (len(queue), keys(queue)) == (0, "")


def test_one_that_is_larger_than_a_step_goes_alone() -> None:
    """Fault: a large picture waits for ever, or takes others with it."""
    queue = EncodingQueue(10)
    queue.add("one", (0, 1), [media("a", 30), media("b")])
    assert keys(queue) == "a"
    queue.take("one", "a")
    queue.add("two", (0, 2), [media("c", 30)])
    assert keys(queue) == "b"


class Runner:
    """Makes a row of ones for each token; fails with those that are bad."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def encode(self, inputs: Sequence[MediaInput]) -> list[EncodedMedia]:
        self.calls.append("".join(one.key for one in inputs))
        if "!" in self.calls[-1]:
            raise ValueError("no picture")
        return [EncodedMedia(torch.ones(one.tokens - (one.key == "-"), 2)) for one in inputs]


def encoded(made: MediaEncoder, *batch: MediaInput) -> dict[str, str]:
    return {one.key: type(found).__name__ for one, found in made.encode(batch)}


@pytest.mark.parametrize(("bad", "error"), [("!", "ValueError"), ("-", StageFailedError.__name__)])
def test_only_those_fail_that_fail_alone(bad: str, error: str) -> None:
    """Fault: one broken picture fails the requests of others, or fewer rows than places shift all that follow."""
    runner: Any = Runner()
    made = MediaEncoder(runner, "thinker")
    assert encoded(made, media("a"), media(bad), media("b")) == {"a": "EncodedMedia", bad: error, "b": "EncodedMedia"}
    assert runner.calls == [f"a{bad}b", "a", bad, "b"]
    assert encoded(made, media(bad)) == {bad: error}
    assert (runner.calls[4:], made.num_reruns) == ([bad], 1)
    assert made.known(media("a")) is not None
    assert made.known(media(bad)) is None


def test_what_is_encoded_is_kept_within_its_bytes() -> None:
    """Fault: rows of every picture stay for ever, or additions between layers are not counted."""
    runner: Any = Runner()
    made = MediaEncoder(runner, "thinker", limit_nbytes=4 * 2 * 4)
    encoded(made, media("a"))
    assert made.known(media("a")) is not None
    encoded(made, media("b"))
    assert (made.known(media("a")), made.known(media("b")) is not None) == (None, True)
