"""What becomes of the encoder's calls: rows that are kept, and calls that fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from omnistage.core.errors import StageFailedError
from omnistage.modeling.protocols import EncodedMedia, MediaInput
from omnistage.stages.ar.encoding import MediaEncoder


def media(key: str, tokens: int = 4) -> MediaInput:
    return MediaInput("image", key, ((0, tokens),), tokens, {})


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
