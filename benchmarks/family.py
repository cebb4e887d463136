"""Two pipelines without weights, for figures of everything around a model. What a request wants stands in its prompt, as JSON.

    relay      sender ──tensors──> receiver ──> text        {"items", "pause_s", "nbytes"}
               tape ──> audio                               {"chunks", "samples", "pause_s"}

The sender waits `pause_s` before each item. An item's way begins where its step's result is emitted (the `select` of the edge) and
ends where the next engine has been fed (its bridge); both look at the same clock, and the receiver says all ways at the end, in
nanoseconds. The tape plays as fast as it is let, after a pause before each batch of chunks, if one is asked for.

    simulated  thinker ──rows──> talker ──frames──> codec ──> audio         {"tokens", "frames"}
                  └──> text

Its stages sleep for the times that are published for such a model (a step of the thinker, a step of the talker with its code
predictor, a chunk of the codec), whatever the batch. Measured times of a step reach from one step's results to the next's, so
the thinker and the talker keep that beat: what happens in their process between two steps is part of it, as it is where it was
measured, and shows only when it takes longer than the step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omnistage.config.pipeline import ChunkPolicy, Edge, ExecutionType, PipelineConfig, StagePipelineConfig
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.request import OmniRequest
from omnistage.core.spec import TensorSpec
from omnistage.modeling.protocols import StageInput

MODULE = "benchmarks.family"
RATE = 24_000
THINKER_S, TALKER_S, CODEC_S = 0.0083, 0.021, 0.003
ROW_NBYTES = 8 * 2**10
FIRST_FRAMES, LATER_FRAMES = 4, 25
FRAME_SAMPLES = 1920
CODEBOOKS = 16

Made = tuple[MultimodalPayload | None, int]


class Model:
    """A GenerationModel whose state counts runs. `make(data, count)` is what one run makes of one input. `batches`: requests
    run together."""

    def __init__(self, make: Callable[[Any, int], MultimodalPayload | None], *, batches: bool = False) -> None:
        self._make = make
        self._key = "together" if batches else None

    def begin(self, request: OmniRequest, params: Any) -> int:
        return 0

    def batch_key(self, chunk: Any, state: int) -> object:
        return self._key

    def cost(self, chunk: Any) -> int:
        return 1

    def run(self, batch: Sequence[tuple[Any, int]]) -> list[Made]:
        return [(self._make(chunk, state), state + 1) for chunk, state in batch]

    def interrupt(self) -> None: ...


class TimedModel(Model):
    """A run takes `step_s`; with `keeps_beat` counted from the end of the run before, unless the stage has been idle since."""

    def __init__(
        self, step_s: float, make: Callable[[Any, int], MultimodalPayload | None], *, keeps_beat: bool
    ) -> None:
        super().__init__(make, batches=True)
        self._step_s = step_s
        self._keeps_beat = keeps_beat
        self._due = 0.0

    def run(self, batch: Sequence[tuple[Any, int]]) -> list[Made]:
        now = time.monotonic()
        goes_on = self._keeps_beat and now - self._due < self._step_s
        self._due = (self._due if goes_on else now) + self._step_s
        made = super().run(batch)
        time.sleep(max(0.0, self._due - time.monotonic()))
        return made


def asked(request: OmniRequest) -> dict[str, Any]:
    messages = request.prompt.messages or ({"content": request.prompt.text or "{}"},)
    found: dict[str, Any] = json.loads(messages[-1]["content"])
    return found


def text(said: str, place: int) -> Mapping[str, Any]:
    return {"choices": [{"index": 0, "text": said, "token_ids": [place]}]}


def sound(samples: int) -> MultimodalPayload:
    return MultimodalPayload(
        {"audio": Tensor(TensorSpec("float32", (samples,)), _silence(4 * samples))}, {"sample_rate": RATE}
    )


def _silence(nbytes: int) -> memoryview:
    return memoryview(bytes(nbytes))


# ---- relay ----


def load_sender(config: Any) -> Model:
    def send(chunk: Any, place: int) -> MultimodalPayload:
        time.sleep(chunk["pause_s"])
        tensors = {"rows": Tensor(TensorSpec("uint8", (chunk["nbytes"],)), _silence(chunk["nbytes"]))}
        return MultimodalPayload(tensors)

    return Model(send)


def emitted(capture: MultimodalPayload, request: OmniRequest) -> MultimodalPayload:
    """The first thing that is done with what a step made is to pick what travels."""
    return MultimodalPayload(capture.tensors, {"emitted_ns": time.monotonic_ns()})


def load_items(config: Any) -> Callable[[OmniRequest], list[StageInput]]:
    def process(request: OmniRequest) -> list[StageInput]:
        wanted = asked(request)
        item = {"pause_s": wanted.get("pause_s", 0.0), "nbytes": wanted.get("nbytes", 0)}
        return [StageInput(item)] * wanted.get("items", 0)

    return process


def receiver_bridge(
    state: tuple[int, ...] | None, source: int, seq: int, payload: MultimodalPayload | None, last: bool
) -> tuple[tuple[int, ...], list[StageInput]]:
    """All ways at the end, in one word each: what is said meanwhile would be work beside what is measured."""
    now_ns = time.monotonic_ns()
    ways = state or ()
    if payload is not None:
        ways = (*ways, now_ns - payload.metadata["emitted_ns"])
    return ways, [StageInput({"ways_ns": ways})] if last else []


def load_receiver(config: Any) -> Model:
    def say(chunk: Any, place: int) -> MultimodalPayload:
        return MultimodalPayload(metadata=text(" ".join(map(str, chunk["ways_ns"])), place))

    return Model(say)


class Tape(Model):
    def run(self, batch: Sequence[tuple[Any, int]]) -> list[Made]:
        time.sleep(max(chunk["pause_s"] for chunk, _ in batch))
        return super().run(batch)


def load_tape(config: Any) -> Model:
    return Tape(lambda chunk, place: sound(chunk["samples"]), batches=True)


def load_chunks(config: Any) -> Callable[[OmniRequest], list[StageInput]]:
    def process(request: OmniRequest) -> list[StageInput]:
        wanted = asked(request)
        item = {"samples": wanted.get("samples", RATE), "pause_s": wanted.get("pause_s", 0.0)}
        return [StageInput(item)] * wanted.get("chunks", 0)

    return process


# ---- simulated ----


def load_thinker(config: Any) -> Model:
    def think(chunk: Any, place: int) -> MultimodalPayload:
        return MultimodalPayload(metadata={**text(f"word {place} ", place), "frames": chunk["frames"]})

    return TimedModel(THINKER_S, think, keeps_beat=True)


def load_tokens(config: Any) -> Callable[[OmniRequest], list[StageInput]]:
    def process(request: OmniRequest) -> list[StageInput]:
        wanted = asked(request)
        return [StageInput({"frames": wanted["frames"]})] * wanted["tokens"]

    return process


def written(capture: MultimodalPayload, request: OmniRequest) -> MultimodalPayload:
    """What the talker gets of the thinker: a row for each token, and how many frames it is to speak."""
    row = Tensor(TensorSpec("bfloat16", (1, ROW_NBYTES // 2)), _silence(ROW_NBYTES))
    return MultimodalPayload({"rows": row}, {"frames": capture.metadata["frames"]})


def talker_bridge(
    state: int | None, source: int, seq: int, payload: MultimodalPayload | None, last: bool
) -> tuple[int, list[StageInput]]:
    """A frame for each row, and after the last row all that are left. The state counts frames."""
    made = state or 0
    if payload is None:
        return made, []
    rows = payload.tensors["rows"].spec.shape[0]
    count = payload.metadata["frames"] - made if last else rows
    return made + count, [StageInput({})] * count


def load_talker(config: Any) -> Model:
    def talk(chunk: Any, place: int) -> MultimodalPayload:
        return MultimodalPayload({"codes": Tensor(TensorSpec("int32", (1, CODEBOOKS)), _silence(4 * CODEBOOKS))})

    return TimedModel(TALKER_S, talk, keeps_beat=True)


def codec_bridge(
    state: None, source: int, seq: int, payload: MultimodalPayload | None, last: bool
) -> tuple[None, list[StageInput]]:
    return None, [] if payload is None else [StageInput({"frames": payload.tensors["codes"].spec.shape[0]})]


def load_codec(config: Any) -> Model:
    return TimedModel(CODEC_S, lambda chunk, place: sound(chunk["frames"] * FRAME_SAMPLES), keeps_beat=False)


def _stage(stage_id: int, name: str, **values: Any) -> StagePipelineConfig:
    return StagePipelineConfig(
        stage_id=stage_id,
        model_stage=name,
        execution_type=ExecutionType.LLM_GENERATION,
        loader=f"{MODULE}:load_{name}",
        **values,
    )


RELAY = PipelineConfig(
    model_type="relay",
    model_arch="no weights",
    stages=(
        _stage(0, "sender", processor=f"{MODULE}:load_items"),
        _stage(
            1,
            "receiver",
            bridge=f"{MODULE}:receiver_bridge",
            edges=(Edge(0, 1, select=f"{MODULE}:emitted", window=4, item_nbytes=2**18),),
            final_output=True,
            final_output_type="text",
        ),
        _stage(
            2,
            "tape",
            processor=f"{MODULE}:load_chunks",
            final_output=True,
            final_output_type="audio",
            item_nbytes=4 * RATE,
        ),
    ),
)

SIMULATED = PipelineConfig(
    model_type="simulated",
    model_arch="no weights",
    stages=(
        _stage(0, "thinker", processor=f"{MODULE}:load_tokens", final_output=True, final_output_type="text"),
        _stage(
            1,
            "talker",
            bridge=f"{MODULE}:talker_bridge",
            edges=(Edge(0, 1, select=f"{MODULE}:written", window=4, chunk=ChunkPolicy("rows", first=1, later=4)),),
        ),
        _stage(
            2,
            "codec",
            bridge=f"{MODULE}:codec_bridge",
            edges=(Edge(1, 2, window=4, chunk=ChunkPolicy("frames", FIRST_FRAMES, LATER_FRAMES, adaptive=False)),),
            final_output=True,
            final_output_type="audio",
            item_nbytes=4 * FRAME_SAMPLES * LATER_FRAMES,
        ),
    ),
)
