"""The codec decoder beside transformers' own: whole, in any chunks, in any company, and through the generation engine.

Faults pinned: samples lost or doubled where chunks meet; sound that depends on how its frames came or on who shared the
batch; a frame that is decoded twice; a state that grows with its request, or changes under a run that failed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from omnistage.config.stage import OutputEdge
from omnistage.core.errors import BrokenCheckpointError, InvalidRequestError
from omnistage.core.params import GenerationParams
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.modeling.checkpoint import WEIGHTS_INDEX, WeightsReader
from omnistage.modeling.kernels.native import KernelOps
from omnistage.modeling.kernels.waves import KernelWaves, TorchWaves
from omnistage.modeling.protocols import Interrupted
from omnistage.modeling.streaming import shape_key
from omnistage.models.qwen3_omni import code2wav
from omnistage.models.qwen3_omni.code2wav import PIECE, SAMPLE_RATE_HZ, Code2Wav
from omnistage.models.qwen3_omni.settings import code2wav_settings, read_config
from omnistage.stages.base import StageOutput, StageRequest
from omnistage.stages.emitter import Emitter
from omnistage.stages.generation.build import build_generation_engine
from omnistage.stages.generation.engine import GenerationEngine
from omnistage.wire.messages import CLIENT, Emitted
from tests.fakes import request_of
from tests.stages.fakes import TightConnector
from tests.tiny.omni_codec import (
    CODECS,
    SMALL,
    CodecShape,
    codec_module,
    codec_stage,
    one_shot,
    random_frames,
    write_codec,
)
from tests.tiny.qwen3_omni import OmniShape

TOLERANCE = 1e-5
FRAMES = 300
SCHEDULE = (4, 25)
Frames = np.ndarray[Any, Any]

module_of = cache(codec_module)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def folder(shape: CodecShape, dtype: torch.dtype = torch.float32) -> Path:
        return write_codec(tmp_path_factory.mktemp("codec"), shape, module_of(shape), dtype)

    return folder


@pytest.fixture(scope="module")
def model_of(folder_of: Any) -> Any:
    @cache
    def model(shape: CodecShape, dtype: str = "float32") -> Code2Wav:
        return code2wav.load(codec_stage(folder_of(shape), dtype=dtype))

    return model


def begun(model: Code2Wav) -> Any:
    return model.begin(request_of(), GenerationParams(voice="ethan"))


def pieces(frames: Frames, sizes: Sequence[int]) -> list[Frames]:
    """Of `sizes`, the last of them again and again."""
    parts, place = [], 0
    while len(frames):
        size = sizes[min(place, len(sizes) - 1)]
        parts.append(frames[:size])
        frames, place = frames[size:], place + 1
    return parts


def spoken(model: Code2Wav, parts: Sequence[Frames], state: Any = None) -> tuple[Frames, Any]:
    """One run for each part: the samples of all, and the last state."""
    state = begun(model) if state is None else state
    made = []
    for part in parts:
        ((payload, state),) = model.run([({"frames": part}, state)])
        assert payload is not None
        assert payload.metadata == {"sample_rate": SAMPLE_RATE_HZ}
        made.append(payload.numpy("audio"))
    return np.concatenate(made), state


def expect_equal(found: Frames, wanted: Frames, tolerance: float = TOLERANCE) -> None:
    assert found.shape == wanted.shape
    assert found.dtype == np.float32
    assert float(np.abs(found - wanted).max(initial=0.0)) <= tolerance


# --- beside transformers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", CODECS)
@pytest.mark.parametrize("count", [1, 2, 4, 25, FRAMES])
def test_one_shot_equals_transformers(shape: CodecShape, count: int, model_of: Any) -> None:
    """Fault: other samples, or another number of them."""
    frames = random_frames(shape, count)
    wanted = one_shot(module_of(shape), frames)
    assert count == 1 or 0.05 < wanted.std() < 0.5, "nothing could be heard"
    expect_equal(spoken(model_of(shape), [frames])[0], wanted)


@pytest.mark.parametrize("shape", CODECS)
@pytest.mark.parametrize("sizes", [(1,), (4,), (25,), (FRAMES,), SCHEDULE, (33, 1, 40)])
def test_any_schedule_gives_the_one_shot_sound(shape: CodecShape, sizes: tuple[int, ...], model_of: Any) -> None:
    """Fault: a border that can be heard."""
    frames = random_frames(shape, FRAMES)
    expect_equal(spoken(model_of(shape), pieces(frames, sizes))[0], one_shot(module_of(shape), frames))


def test_the_published_rates_lose_555_samples_once(model_of: Any) -> None:
    """Fault: 23 ms are missing at every border."""
    shape = CODECS[0]
    audio, _ = spoken(model_of(shape), pieces(random_frames(shape, 30), SCHEDULE))
    assert len(audio) == 30 * 1920 - 555


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_random_chunkings_equal_transformers(sizes: list[int], seed: int, model_of: Any) -> None:
    """Fault: a border at a place that no schedule has."""
    frames = random_frames(SMALL, sum(sizes), seed)
    expect_equal(spoken(model_of(SMALL), pieces(frames, sizes))[0], one_shot(module_of(SMALL), frames))


@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=9), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_in_float64_chunks_and_one_shot_agree_to_rounding(sizes: list[int], seed: int, model_of: Any) -> None:
    """Fault: an error at a border that is small enough to pass for float32 rounding."""
    model = model_of(SMALL, "float64")
    frames = torch.from_numpy(random_frames(SMALL, sum(sizes), seed))[None].long()
    whole, _ = model.decode(frames, begun(model))
    state, made = begun(model), []
    for part in frames.split(sizes, dim=1):
        audio, state = model.decode(part, state)
        made.append(audio)
    assert whole.dtype == torch.float32
    assert torch.allclose(torch.cat(made, dim=1).double(), whole.double(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("sizes", [(FRAMES,), SCHEDULE])
def test_bfloat16_is_as_near_as_transformers_own(sizes: tuple[int, ...], folder_of: Any) -> None:
    """Fault: sums that are rounded where transformers does not."""
    shape = CODECS[2]
    folder = folder_of(shape, torch.bfloat16)
    stored = {
        name.removeprefix("code2wav."): tensor for name, tensor in load_file(folder / "model.safetensors").items()
    }
    exact, narrow = codec_module(shape), codec_module(shape).to(torch.bfloat16)
    exact.load_state_dict({name: tensor.float() for name, tensor in stored.items()})
    narrow.load_state_dict(stored)
    frames = random_frames(shape, 100)
    wanted = one_shot(exact, frames)
    theirs = float(np.sqrt(np.mean((one_shot(narrow, frames) - wanted) ** 2)))
    found, _ = spoken(code2wav.load(codec_stage(folder, dtype="bfloat16")), pieces(frames, sizes))
    assert found.shape == wanted.shape
    assert float(np.sqrt(np.mean((found - wanted) ** 2))) <= 1.2 * theirs


@pytest.mark.parametrize("shape", [CODECS[0], CODECS[3]])
def test_kernels_and_torch_make_the_same_sound(shape: CodecShape, folder_of: Any, kernels: KernelOps) -> None:
    """Fault: a machine that has a compiler sounds otherwise."""
    weights = WeightsReader(folder_of(shape), torch.float32, "code2wav.")
    frames = random_frames(shape, 90)
    for waves in (KernelWaves(kernels.path), TorchWaves()):
        model = Code2Wav(weights, code2wav_settings(read_config(folder_of(shape))), waves)
        for sizes in ((90,), SCHEDULE):
            found, _ = spoken(model, pieces(frames, sizes))
            expect_equal(found, one_shot(module_of(shape), frames))
            assert spoken(model, pieces(frames, sizes))[0].tobytes() == found.tobytes()


# --- state and batches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [4, 8, 25])  # all at a time, four, one
def test_requests_of_any_age_share_a_batch_and_equal_themselves_alone(model_of: Any, length: int) -> None:
    """Fault: states of different ages cannot be stacked; a young request sees keys that are not there, or turns by the age of
    its neighbour."""
    for shape in CODECS[:2]:
        model = model_of(shape)
        ages = [1, 5, 40, 71, 72, 100]
        before = [random_frames(shape, age, seed=age) for age in ages]
        next_frames = [random_frames(shape, length, seed=1000 + age) for age in ages]
        states = [spoken(model, [frames])[1] for frames in before]
        keys = {model.batch_key({"frames": frames}, state) for frames, state in zip(next_frames, states, strict=True)}
        assert len(keys) == 1
        together = model.run([({"frames": frames}, state) for frames, state in zip(next_frames, states, strict=True)])
        for index, (payload, state) in enumerate(together):
            assert payload is not None
            alone, _ = spoken(model, [next_frames[index]], states[index])
            expect_equal(payload.numpy("audio"), alone)
            whole = one_shot(module_of(shape), np.concatenate([before[index], next_frames[index]]))
            expect_equal(payload.numpy("audio"), whole[-payload.numpy("audio").size :])
            later = random_frames(shape, 7, seed=7)
            after_both = spoken(model, [next_frames[index], later], states[index])[0]
            expect_equal(spoken(model, [later], state)[0], after_both[alone.size :])


def test_chunks_of_other_lengths_or_of_a_beginning_do_not_share_a_batch(model_of: Any) -> None:
    """Fault: a batch that cannot be stacked."""
    model = model_of(SMALL)
    frames = random_frames(SMALL, 4)
    _, older = spoken(model, [frames])
    keys = {
        model.batch_key({"frames": part}, state)
        for part, state in ((frames, begun(model)), (frames, older), (frames[:3], older))
    }
    assert len(keys) == 3
    assert model.cost({"frames": frames}) == 4


def test_the_same_schedule_gives_the_same_bytes(model_of: Any) -> None:
    """Fault: sound that changes from run to run, or with what was computed before it."""
    shape = CODECS[0]
    model = model_of(shape)
    parts = pieces(random_frames(shape, 60), SCHEDULE)
    first, _ = spoken(model, parts)
    spoken(model, [random_frames(shape, 40, seed=9)])
    assert spoken(model, parts)[0].tobytes() == first.tobytes()


def test_a_state_keeps_its_size_and_is_never_written_to(model_of: Any) -> None:
    """Fault: memory that grows with the sound; a run that failed or was interrupted has moved its request on."""
    model = model_of(SMALL)
    frames = random_frames(SMALL, 50)
    _, young = spoken(model, [frames[:1]])
    _, old = spoken(model, pieces(frames, [7]))
    assert shape_key(young) == shape_key(old)
    first, _ = spoken(model, [frames[:9]], young)
    assert spoken(model, [frames[:9]], young)[0].tobytes() == first.tobytes()
    assert spoken(model, [frames])[0].tobytes() == spoken(model, [frames])[0].tobytes()


def test_no_frame_is_decoded_twice(model_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: context that is computed again with every chunk, as the published decoder does."""
    model, steps = model_of(SMALL), []
    embedding = torch.nn.functional.embedding

    def counted(codes: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        steps.append(codes.shape[1])
        return embedding(codes, table)

    monkeypatch.setattr("torch.nn.functional.embedding", counted)
    spoken(model, pieces(random_frames(SMALL, 3 * PIECE), (4, 25, 2 * PIECE)))
    assert sum(steps) == 3 * PIECE
    assert max(steps) == PIECE


# --- the protocol ----------------------------------------------------------------------------------------------------


def test_an_interruption_ends_the_run_and_nothing_else(model_of: Any) -> None:
    """Fault: a cancel waits for minutes of sound; the next run ends early as well."""
    model = model_of(SMALL)
    frames = random_frames(SMALL, 6)
    wanted, _ = spoken(model, [frames])
    model.interrupt()
    with pytest.raises(Interrupted):
        spoken(model, [frames])
    assert spoken(model, [frames])[0].tobytes() == wanted.tobytes()


def test_another_pace_is_refused(model_of: Any) -> None:
    """Fault: `speed` is accepted and has no effect."""
    with pytest.raises(InvalidRequestError, match=r"speed: 1\.5 is not accepted"):
        model_of(SMALL).begin(request_of(), GenerationParams(speed=1.5))


def engine_of(folder: Path) -> GenerationEngine:
    return build_generation_engine(codec_stage(folder))


def add(engine: GenerationEngine, request_id: str, age: int = 0) -> None:
    engine.add(StageRequest(request_of(request_id=request_id), 1, 2, (0, age), frozenset({CLIENT})))


def feed(engine: GenerationEngine, request_id: str, parts: Sequence[Frames]) -> None:
    for seq, part in enumerate(parts):
        engine.feed(request_id, 1, seq, MultimodalPayload({"frames": Tensor.of(part)}), last=seq == len(parts) - 1)


def outputs_of(engine: GenerationEngine) -> dict[str, list[StageOutput]]:
    outputs: dict[str, list[StageOutput]] = {}
    while engine.has_work():
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def heard(outputs: list[StageOutput]) -> Frames:
    return np.concatenate([output.capture.numpy("audio") for output in outputs if output.capture is not None])


def test_through_the_engine_side_by_side(folder_of: Any) -> None:
    """Fault: requests that are mixed up, or seconds that are counted wrong."""
    shape = CODECS[0]
    engine = engine_of(folder_of(shape))
    said = {f"r{index}": random_frames(shape, 20 + 15 * index, seed=index) for index in range(4)}
    for age, (request_id, frames) in enumerate(said.items()):
        add(engine, request_id, age)
        feed(engine, request_id, pieces(frames, SCHEDULE))
    for request_id, outputs in outputs_of(engine).items():
        wanted = one_shot(module_of(shape), said[request_id])
        expect_equal(heard(outputs), wanted)
        assert outputs[-1].finish_reason == "done"
        assert outputs[-1].usage.audio_seconds == wanted.size / SAMPLE_RATE_HZ


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        (
            np.array([[1, 2], [3, 16]], np.int32),
            "codec frame 5: code 16 of group 1 is in no codebook; accepted: 0 to 15",
        ),
        (np.array([[-1, 2]], np.int32), "codec frame 4: code -1 of group 0"),
        (np.array([[1, 2, 3]], np.int32), r"codec frames of shape \[1, 3\]; accepted: \[frames, 2\]"),
        (np.array([1, 2], np.int32), r"codec frames of shape \[2\]"),
    ],
)
def test_frames_that_there_are_none_of_fail_their_request_alone(frames: Frames, says: str, folder_of: Any) -> None:
    """Fault: an index out of range ends the worker, or the sound of whoever shared the batch."""
    engine = engine_of(folder_of(SMALL))
    good = random_frames(SMALL, 4 + len(frames))
    for age, (request_id, late) in enumerate([("bad", frames), ("good", good[4:])]):
        add(engine, request_id, age)
        feed(engine, request_id, [good[:4], late])
    outputs = outputs_of(engine)
    error = outputs["bad"][-1].error
    assert error is not None
    assert error.code == "stage_failed"
    assert re.search(says, error.message), error.message
    expect_equal(heard(outputs["good"]), one_shot(module_of(SMALL), good))


@pytest.mark.parametrize("adaptive", [True, False])
def test_whole_and_pinned_streams_are_the_same_bytes(adaptive: bool, folder_of: Any) -> None:
    """Fault: with `async_chunk` off the same request sounds otherwise by a bit."""
    shape = CODECS[0]
    sounds = []
    for streaming in (True, False):
        edge = OutputEdge(
            target=2,
            unit="frames",
            first=SCHEDULE[0],
            later=SCHEDULE[1],
            adaptive=adaptive and not streaming,
            streaming=streaming,
        )
        connector, engine = TightConnector(), engine_of(folder_of(shape))
        emitter = Emitter((edge,), {"shm": connector}, stage="talker")
        emitter.open(StageRequest(request_of(), 1, 1, (0, 0), frozenset({2})), {})
        add(engine, request_of().request_id)
        for frame in random_frames(shape, 70):
            emitter.gather(request_of().request_id, MultimodalPayload({"frames": Tensor.of(frame[None])}))
            forward(emitter, connector, engine)
        emitter.end(request_of().request_id, StageOutput(request_of().request_id, finish_reason="stop"))
        forward(emitter, connector, engine)
        sounds.append(heard(outputs_of(engine)[request_of().request_id]))
    assert sounds[0].tobytes() == sounds[1].tobytes()


def forward(emitter: Emitter, connector: TightConnector, engine: GenerationEngine) -> None:
    for event in emitter.pump().events:
        if isinstance(event, Emitted):
            item = connector.get(event.ref) if event.ref is not None else None
            engine.feed(event.request_id, 1, event.seq, item, last=event.last)


# --- the folder ------------------------------------------------------------------------------------------------------


def test_the_decoder_of_a_whole_folder(omni: Any, reference: Any) -> None:
    """Fault: names or settings that only a folder of its own has."""
    shape = OmniShape()
    frames = random_frames(CodecShape(groups=shape.groups, codebook=shape.codebook), 30)
    found, _ = spoken(code2wav.load(codec_stage(omni(shape))), pieces(frames, SCHEDULE))
    expect_equal(found, one_shot(reference(shape).code2wav, frames))


def test_only_its_own_tensors_are_read(folder_of: Any, tmp_path: Path) -> None:
    """Fault: the stage opens the files of the whole model."""
    tensors = load_file(folder_of(SMALL) / "model.safetensors")
    save_file(tensors, tmp_path / "own.safetensors")
    places = dict.fromkeys(tensors, "own.safetensors") | {"thinker.lm_head.weight": "absent.safetensors"}
    (tmp_path / WEIGHTS_INDEX).write_text(json.dumps({"weight_map": places}))
    (tmp_path / "config.json").write_text(json.dumps({"code2wav_config": SMALL.config()}))
    frames = random_frames(SMALL, 5)
    expect_equal(spoken(code2wav.load(codec_stage(tmp_path)), [frames])[0], one_shot(module_of(SMALL), frames))


def test_a_tensor_that_is_missing_is_named(folder_of: Any, tmp_path: Path) -> None:
    """Fault: a decoder with random weights in it."""
    tensors = load_file(folder_of(SMALL) / "model.safetensors")
    del tensors["code2wav.decoder.1.block.3.act1.beta"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"code2wav_config": SMALL.config()}))
    with pytest.raises(BrokenCheckpointError, match=r"no tensor code2wav\.decoder\.1\.block\.3\.act1\.beta"):
        code2wav.load(codec_stage(tmp_path))
