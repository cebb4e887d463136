"""A thinker that writes, a prosody that listens to it, and a speaker that joins both: fast, seeded, and obedient.

    thinker ──text──────────────> speaker ──> audio
       └────text──> prosody ──tones─────────┘       (the thinker's text goes to the caller too)

A prompt is a list of words. The n-th word becomes the text "word.k", k drawn from (seed, n), and `SAMPLES` equal samples, so
`expected` knows every answer. A word "!kind@place" is an order that whoever is named carries out when it meets the word (in the
list below without "@place" where there is only one place):

    prepare                the processor raises           select@prosody|speaker  what the edge picks raises
    refuse                 the thinker refuses to begin   begin@speaker           beginning raises
    bridge@...             the bridge raises              forward@...             the run raises
    short@...              the run loses its results      capture@...             what was made cannot be copied
    memory@...             MemoryError                    allocate@...            a real allocation fails
    hang@...               a run that does not end        exit@...                the process dies
    linger@...             a second that can be ended     pause@thinker           PAUSE_S, nothing is written
    big@speaker            eight times the samples        huge@speaker            forty times
    wide@prosody           a tone that needs the arena    lose, double            (see worker.py)
"""

from __future__ import annotations

import hashlib
import os
import resource
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from omnistage.config.pipeline import ChunkPolicy, Edge, ExecutionType, PipelineConfig, StagePipelineConfig
from omnistage.core.errors import InvalidRequestError
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.request import OmniRequest
from omnistage.core.spec import TensorSpec
from omnistage.modeling.protocols import Interrupted, StageInput

RATE = 24_000
SAMPLES = 20_000  # 80 KB in float32: more than a message holds, so that it travels through the arena
BIG, HUGE = 8, 40  # a huge item is too large for the arena and gets memory of its own
TONES = 16  # a tone is said so often; a wide one `SAMPLES` times
PACE_S = 0.002
PAUSE_S = 0.1
LINGER_S = 1.0
HANG_S = 60.0
MODULE = "tests.faults.family"

Made = tuple[MultimodalPayload | None, Any]


# ---- what is right ----


def drawn(seed: int, place: int) -> int:
    """The thinker's draw for the word at `place`."""
    return hashlib.sha256(f"{seed}/{place}".encode()).digest()[0]


def tone_of(word: str) -> int:
    return hashlib.sha256(word.encode()).digest()[0] % 16


def level_of(word: str, tone: int) -> float:
    """The value of all samples of a word."""
    return float(np.float32((hashlib.sha256(word.encode()).digest()[1] * 16 + tone) / 8192))


def expected(words: Sequence[str], seed: int) -> tuple[str, bytes]:
    """Text and 16-bit samples of the whole answer."""
    places = [place for place, word in enumerate(words) if order(word)[0] != "pause"]
    said = [f"{words[place]}.{drawn(seed, place)}" for place in places]
    text = "".join(f" {word}" if place else word for place, word in zip(places, said, strict=True))
    levels = [(samples_of(word), round(level_of(word, tone_of(word)) * 32767)) for word in said]
    return text, b"".join(np.full(count, level, "<i2").tobytes() for count, level in levels)


def samples_of(word: str) -> int:
    return SAMPLES * {"big": BIG, "huge": HUGE}.get(order(word)[0], 1)


def order(word: str) -> tuple[str, str]:
    """("forward", "speaker") for "!forward@speaker.17"; two empty strings for a word that is none."""
    if not word.startswith("!"):
        return "", ""
    kind, _, place = word[1:].partition(".")[0].partition("@")
    return kind, place


# ---- models ----


@dataclass(frozen=True, slots=True)
class Uncopyable:
    """A tensor that claims to be there and is not."""

    spec: TensorSpec

    def copy_to(self, view: memoryview) -> None:
        raise RuntimeError("told to have nothing to copy")


@dataclass(frozen=True, slots=True)
class State:
    """`place` counts the words; `seed` is the request's."""

    seed: int
    place: int = 0


class Obedient:
    """A GenerationModel: `make(word, state)` out of every word, or what the word orders this stage to do."""

    def __init__(self, name: str, make: Callable[[str, State], MultimodalPayload]) -> None:
        self._name = name
        self._make = make
        self._interrupted = threading.Event()

    def begin(self, request: OmniRequest, params: Any) -> State:
        for kind, place in map(order, words_of(request)):
            if place == self._name and kind == "refuse":
                raise InvalidRequestError.of("messages", "refuse", "any other word")
            if place == self._name and kind == "begin":
                raise RuntimeError("told not to begin")
        return State(params.seed or 0)

    def batch_key(self, chunk: Mapping[str, Any], state: State) -> object:
        return None if self._ordered(chunk) == "linger" else "words"

    def cost(self, chunk: Mapping[str, Any]) -> int:
        return 1

    def run(self, batch: Sequence[tuple[Mapping[str, Any], State]]) -> list[Made]:
        self._interrupted.clear()
        orders = [self._ordered(chunk) for chunk, _ in batch]
        if "short" in orders:
            return []
        time.sleep(PAUSE_S if "pause" in orders else PACE_S)
        return [(self._obey(chunk["word"], state), State(state.seed, state.place + 1)) for chunk, state in batch]

    def interrupt(self) -> None:
        self._interrupted.set()

    def _ordered(self, chunk: Mapping[str, Any]) -> str:
        kind, place = order(chunk["word"])
        return kind if place == self._name else ""

    def _obey(self, word: str, state: State) -> MultimodalPayload | None:
        match self._ordered({"word": word}):
            case "forward":
                raise RuntimeError("told to fail")
            case "capture":
                spec = TensorSpec("float32", (SAMPLES,))
                return MultimodalPayload({"audio": Uncopyable(spec)}, {"sample_rate": RATE, "word": word})
            case "memory":
                raise MemoryError("told to be out of memory")
            case "allocate":
                allocate_too_much()
            case "hang":
                time.sleep(HANG_S)
            case "exit":
                os._exit(9)
            case "linger" if self._interrupted.wait(LINGER_S):
                raise Interrupted
            case "pause":
                return None
        return self._make(word, state)


def allocate_too_much() -> None:
    """A real failure of the allocator, in a process that may have 64 MiB more than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 64 * 2**20, before[1]))
    try:
        np.ones(2**27)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def write(word: str, state: State) -> MultimodalPayload:
    said = f"{word}.{drawn(state.seed, state.place)}"
    place = state.place
    choice = {"index": 0, "text": f" {said}" if place else said, "token_ids": [place]}
    return MultimodalPayload(metadata={"choices": [choice], "said": said})


def listen(word: str, state: State) -> MultimodalPayload:
    count = SAMPLES if order(word)[0] == "wide" else TONES
    return MultimodalPayload({"tone": Tensor.of(np.full(count, tone_of(word), np.float32))}, {"word": word})


def speak(word: str, state: State) -> MultimodalPayload:
    """`word` carries the tone it is to be said in: "word.k|tone"."""
    said, _, tone = word.rpartition("|")
    samples = np.full(samples_of(said), level_of(said, int(tone)), np.float32)
    return MultimodalPayload({"audio": Tensor.of(samples)}, {"sample_rate": RATE})


def load_thinker(config: Any) -> Obedient:
    return Obedient("thinker", write)


def load_prosody(config: Any) -> Obedient:
    return Obedient("prosody", listen)


def load_speaker(config: Any) -> Obedient:
    return Obedient("speaker", speak)


# ---- what stands between them ----


def words_of(request: OmniRequest) -> list[str]:
    messages = request.prompt.messages or ({"content": request.prompt.text or ""},)
    return str(messages[-1]["content"]).split()


def load_words(config: Any) -> Callable[[OmniRequest], list[StageInput]]:
    def process(request: OmniRequest) -> list[StageInput]:
        words = words_of(request)
        if "!prepare" in words:
            raise RuntimeError("told not to prepare")
        return [StageInput({"word": word}) for word in words]

    return process


def _said(target: str, capture: MultimodalPayload) -> MultimodalPayload:
    said = capture.metadata["said"]
    if order(said) == ("select", target):
        raise RuntimeError("told to pick nothing")
    return MultimodalPayload(metadata={"said": said})


def said_to_prosody(capture: MultimodalPayload, request: OmniRequest) -> MultimodalPayload:
    return _said("prosody", capture)


def said_to_speaker(capture: MultimodalPayload, request: OmniRequest) -> MultimodalPayload:
    return _said("speaker", capture)


def prosody_bridge(
    state: None, source: int, seq: int, payload: MultimodalPayload | None, last: bool
) -> tuple[None, list[StageInput]]:
    if payload is None:
        return None, []
    said = payload.metadata["said"]
    if order(said) == ("bridge", "prosody"):
        raise RuntimeError("told to break the bridge")
    return None, [StageInput({"word": said})]


def speaker_bridge(
    state: tuple[tuple[str, ...], tuple[int, ...]] | None,
    source: int,
    seq: int,
    payload: MultimodalPayload | None,
    last: bool,
) -> tuple[tuple[tuple[str, ...], tuple[int, ...]], list[StageInput]]:
    """Joins what is said (source 0) with its tones (source 1), in order; what has no partner yet is kept."""
    words, tones = state or ((), ())
    if payload is None:
        return (words, tones), []
    if source == 0:
        said = payload.metadata["said"]
        if order(said) == ("bridge", "speaker"):
            raise RuntimeError("told to break the bridge")
        words = (*words, said)
    else:
        tone = payload.numpy("tone")
        if tone.shape not in ((SAMPLES,), (TONES,)) or not (tone == tone[0]).all():
            raise RuntimeError(f"a tone of {tone.shape[0]} samples with {len(np.unique(tone))} values came")
        tones = (*tones, int(tone[0]))
    count = min(len(words), len(tones))
    inputs = [StageInput({"word": f"{words[index]}|{tones[index]}"}) for index in range(count)]
    return (words[count:], tones[count:]), inputs


_BY_WORD = ChunkPolicy("items", first=1, later=1, adaptive=False)

PIPELINE = PipelineConfig(
    model_type="faults",
    model_arch="no weights",
    stages=(
        StagePipelineConfig(
            stage_id=0,
            model_stage="thinker",
            execution_type=ExecutionType.LLM_GENERATION,
            loader=f"{MODULE}:load_thinker",
            processor=f"{MODULE}:load_words",
            final_output=True,
            final_output_type="text",
        ),
        StagePipelineConfig(
            stage_id=1,
            model_stage="prosody",
            execution_type=ExecutionType.LLM_GENERATION,
            loader=f"{MODULE}:load_prosody",
            bridge=f"{MODULE}:prosody_bridge",
            edges=(Edge(0, 1, select=f"{MODULE}:said_to_prosody", chunk=_BY_WORD),),
        ),
        StagePipelineConfig(
            stage_id=2,
            model_stage="speaker",
            execution_type=ExecutionType.LLM_GENERATION,
            loader=f"{MODULE}:load_speaker",
            bridge=f"{MODULE}:speaker_bridge",
            edges=(
                Edge(0, 2, select=f"{MODULE}:said_to_speaker", chunk=_BY_WORD, window=8),
                Edge(1, 2, chunk=_BY_WORD, window=4, item_nbytes=SAMPLES * 4),
            ),
            final_output=True,
            final_output_type="audio",
            item_nbytes=SAMPLES * 4,
        ),
    ),
)
