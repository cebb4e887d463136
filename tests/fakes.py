"""Stages without weights and without torch, for real workers and for runtimes in one process.

`load_echo` is the loader of an entry stage that writes: one word of the prompt a step, as text. `load_sound` is the loader of
a stage that speaks: one second of "audio" at `RATE` per word it is fed, through `words_bridge`. Words that are orders:

    fail     the run raises                     hang      the run never ends (until interrupted, if interruptible)
    sleep    the run takes a quarter second     refuse    the request cannot begin
    exit     the process dies at once
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from omnistage.config.stage import GenerationStageConfig, OutputEdge, StageConfig
from omnistage.core.errors import InvalidRequestError
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.request import OmniRequest, Prompt
from omnistage.modeling.protocols import Interrupted, StageInput
from omnistage.wire.messages import CLIENT

RATE = 100
SLEEP_S = 0.25
HANG_S = 60.0

Made = tuple[MultimodalPayload | None, Any]


class FakeModel:
    """Words in, `make(word, place)` out; the state counts the words. Every chunk costs one unit; all share a batch."""

    def __init__(self, make: Callable[[str, int], MultimodalPayload]) -> None:
        self._make = make
        self._interrupted = threading.Event()

    def begin(self, request: OmniRequest, params: Any) -> int:
        if "refuse" in (request.prompt.text or "").split():
            raise InvalidRequestError.of("prompt", "refuse", "any other word")
        return 0

    def batch_key(self, chunk: Mapping[str, Any], state: int) -> object:
        return "words"

    def cost(self, chunk: Mapping[str, Any]) -> int:
        return 1

    def run(self, batch: Sequence[tuple[Mapping[str, Any], int]]) -> list[Made]:
        self._interrupted.clear()
        return [(self._obey(chunk["word"], state), state + 1) for chunk, state in batch]

    def interrupt(self) -> None:
        self._interrupted.set()

    def _obey(self, word: str, place: int) -> MultimodalPayload:
        match word:
            case "fail":
                raise RuntimeError("told to fail")
            case "exit":
                os._exit(9)
            case "sleep":
                time.sleep(SLEEP_S)
            case "hang":
                if self._interrupted.wait(HANG_S):
                    raise Interrupted
        return self._make(word, place)


def as_text(word: str, place: int) -> MultimodalPayload:
    """A text delta, as AR stages write it."""
    return MultimodalPayload(metadata={"text": f" {word}" if place else word, "token_ids": [place], "index": 0})


def as_choice(word: str, place: int) -> MultimodalPayload:
    """The same, in the form in which callers get it."""
    delta = as_text(word, place).metadata
    return MultimodalPayload(metadata={**delta, "choices": [delta]})


def as_sound(word: str, place: int) -> MultimodalPayload:
    """One second of samples, all equal to the word's place."""
    return MultimodalPayload({"audio": Tensor.of(np.full(RATE, place, np.float32))}, {"sample_rate": RATE})


def load_echo(config: StageConfig) -> FakeModel:
    return FakeModel(as_text)


def load_choices(config: StageConfig) -> FakeModel:
    return FakeModel(as_choice)


def load_sound(config: StageConfig) -> FakeModel:
    return FakeModel(as_sound)


def load_nothing(config: StageConfig) -> FakeModel:
    raise FileNotFoundError(f"no weights in {config.model_path}")


def load_words(config: StageConfig) -> Callable[[OmniRequest], list[StageInput]]:
    """The processor of an entry stage: one input per word."""
    return lambda request: [StageInput({"word": word}) for word in (request.prompt.text or "").split()]


def words_bridge(
    state: None, source: int, seq: int, payload: MultimodalPayload | None, last: bool
) -> tuple[None, list[StageInput]]:
    """One input per word of the text that came."""
    text = payload.metadata["text"] if payload is not None else ""
    return None, [StageInput({"word": word}) for word in text.split()]


def echo_config(**changes: Any) -> GenerationStageConfig:
    """Stage 0, "writer": text for the caller."""
    values: dict[str, Any] = {
        "stage_id": 0,
        "model_stage": "writer",
        "model_path": "nowhere",
        "process": "main",
        "loader": "tests.fakes:load_echo",
        "processor": "tests.fakes:load_words",
        "final_output_type": "text",
        "outputs": (OutputEdge(target=CLIENT),),
    }
    return GenerationStageConfig(**(values | changes))


def sound_config(**changes: Any) -> GenerationStageConfig:
    """Stage 1, "speaker": audio for the caller, out of the words of stage 0."""
    values: dict[str, Any] = {
        "stage_id": 1,
        "model_stage": "speaker",
        "model_path": "nowhere",
        "process": "main",
        "loader": "tests.fakes:load_sound",
        "bridge": "tests.fakes:words_bridge",
        "input_sources": (0,),
        "final_output_type": "audio",
        "outputs": (OutputEdge(target=CLIENT),),
    }
    return GenerationStageConfig(**(values | changes))


def request_of(text: str = "one two three", request_id: str = "r", **changes: Any) -> OmniRequest:
    values: dict[str, Any] = {"wants": ("text", "audio"), "stage_params": {}}
    return OmniRequest(request_id=request_id, prompt=Prompt(text=text), **(values | changes))
