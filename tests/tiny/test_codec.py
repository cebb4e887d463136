"""The streaming side of the generation runtime, shown on the tiny codec: chunkings, batches, cancels, failures.

Faults pinned: samples that depend on how the frames arrived or on who shared the batch; state that outlives a cancelled
request; a failing request that takes its batch along.
"""

from collections.abc import Iterator

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.config.stage import GenerationStageConfig, OutputEdge
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.stages.base import StageOutput, StageRequest
from omnistage.stages.generation.build import build_generation_engine
from omnistage.stages.generation.engine import GenerationEngine
from omnistage.wire.messages import CLIENT
from tests.fakes import request_of
from tests.tiny.codec import BROKEN, HOP, SAMPLE_RATE, TinyCodec

TOLERANCE = 1e-6


def engine_of(*, slots: int = 4, budget: int = 64) -> GenerationEngine:
    return build_generation_engine(
        GenerationStageConfig(
            stage_id=1,
            model_stage="codec",
            model_path="nowhere",
            process="main",
            loader="tests.tiny.codec:load",
            bridge="tests.tiny.codec:codes_bridge",
            input_sources=(0,),
            final_output_type="audio",
            outputs=(OutputEdge(target=CLIENT),),
            max_num_seqs=slots,
            max_num_batched_tokens=budget,
        )
    )


def add(engine: GenerationEngine, request_id: str, age: int = 0) -> None:
    engine.add(StageRequest(request_of(request_id=request_id), 1, 1, (0, age), frozenset({CLIENT})))


def codes(seed: int, frames: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, BROKEN, frames)


def pieces(values: np.ndarray, cuts: list[int]) -> Iterator[np.ndarray]:
    for size in cuts:
        yield values[:size]
        values = values[size:]
    yield values


def feed(engine: GenerationEngine, request_id: str, parts: list[np.ndarray]) -> None:
    for seq, part in enumerate(parts):
        payload = MultimodalPayload({"codes": Tensor.of(part)})
        engine.feed(request_id, 0, seq, payload, last=seq == len(parts) - 1)


def run(engine: GenerationEngine) -> dict[str, list[StageOutput]]:
    outputs: dict[str, list[StageOutput]] = {}
    while engine.has_work():
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def samples(outputs: list[StageOutput]) -> np.ndarray:
    made = [output.capture.numpy("audio") for output in outputs if output.capture is not None]
    return np.concatenate([np.zeros(0, np.float32), *made])


def one_shot(values: np.ndarray) -> np.ndarray:
    """The slow, obvious way: everything at once, without the runtime."""
    codec = TinyCodec()
    audio, _ = codec.decode(torch.tensor(values)[None], codec.begin(request_of(), None))
    return audio[0].numpy()


@given(frames=st.integers(1, 30), cuts=st.lists(st.integers(0, 9), max_size=6), seed=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_any_chunking_gives_the_samples_of_the_one_shot_run(frames: int, cuts: list[int], seed: int) -> None:
    """Fault: samples dropped or repeated at chunk borders."""
    engine = engine_of()
    add(engine, "r")
    values = codes(seed, frames)
    feed(engine, "r", list(pieces(values, cuts)))
    outputs = run(engine)["r"]
    assert samples(outputs).shape == (frames * HOP,)
    assert np.allclose(samples(outputs), one_shot(values), rtol=0, atol=TOLERANCE)
    assert outputs[-1].finish_reason == "done"
    assert outputs[-1].usage.audio_seconds == frames * HOP / SAMPLE_RATE


@given(frames=st.integers(1, 30), cuts=st.lists(st.integers(0, 9), max_size=6))
@settings(max_examples=40, deadline=None)
def test_in_float64_chunks_and_one_shot_agree_to_rounding(frames: int, cuts: list[int]) -> None:
    """Fault: an error at a border that is small enough to pass for float32 rounding."""
    codec = TinyCodec(dtype=torch.float64)
    values = codes(3, frames)
    whole, _ = codec.decode(torch.tensor(values)[None], codec.begin(request_of(), None))
    state, made = codec.begin(request_of(), None), []
    for part in pieces(values, cuts):
        audio, state = codec.decode(torch.tensor(part)[None], state)
        made.append(audio)
    assert torch.allclose(torch.cat(made, dim=1), whole, rtol=0, atol=1e-13)


@given(data=st.data(), slots=st.integers(1, 3), budget=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_in_any_company_each_request_equals_itself_alone(data: st.DataObject, slots: int, budget: int) -> None:
    """Fault: states or samples mixed up in a batch, or lost when a request is parked for an older one."""
    engine = engine_of(slots=slots, budget=budget)
    wanted: dict[str, np.ndarray] = {}
    outputs: dict[str, list[StageOutput]] = {}
    for age in reversed(range(5)):
        request_id = f"r{age}"
        values = codes(age, data.draw(st.integers(1, 20)))
        wanted[request_id] = one_shot(values)
        add(engine, request_id, age)
        feed(engine, request_id, list(pieces(values, data.draw(st.lists(st.integers(0, 6), max_size=4)))))
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    for request_id, late in run(engine).items():
        outputs.setdefault(request_id, []).extend(late)
    assert outputs.keys() == wanted.keys()
    for request_id, expected in wanted.items():
        assert np.allclose(samples(outputs[request_id]), expected, rtol=0, atol=TOLERANCE)


def test_requests_of_equal_chunks_share_a_batch() -> None:
    """Fault: requests that could run together run one after the other."""
    engine = engine_of()
    for age in range(3):
        add(engine, f"r{age}", age)
        feed(engine, f"r{age}", [codes(age, 5)])
    assert [output.request_id for output in engine.step() if output.finish_reason] == ["r0", "r1", "r2"]


def test_a_cancel_in_the_middle_frees_the_state_at_once() -> None:
    """Fault: the slot of a cancelled request stays taken, or its samples go on."""
    engine = engine_of(slots=1)
    add(engine, "gone", 0)
    add(engine, "next", 1)
    feed(engine, "gone", [codes(0, 4), codes(1, 4)])
    feed(engine, "next", [codes(2, 4)])
    assert [output.request_id for output in engine.step() if output.capture is not None] == ["gone"]
    engine.cancel("gone")
    assert engine.gauges()["running"] == 0
    outputs = run(engine)
    assert outputs.keys() == {"next"}
    assert np.allclose(samples(outputs["next"]), one_shot(codes(2, 4)), rtol=0, atol=TOLERANCE)
    assert engine.gauges()["running"] == engine.gauges()["waiting"] == 0


def test_a_failing_request_fails_alone() -> None:
    """Fault: one broken chunk fails the whole batch, or the others' states move twice."""
    engine = engine_of()
    for age, request_id in enumerate(["a", "bad", "c"]):
        add(engine, request_id, age)
        broken = np.full(3, BROKEN) if request_id == "bad" else codes(age, 3)
        feed(engine, request_id, [broken, codes(9, 3)])
    outputs = run(engine)
    assert outputs["bad"][-1].error is not None
    assert "code 31 cannot be decoded" in outputs["bad"][-1].error.message
    for age, request_id in ((0, "a"), (2, "c")):
        expected = one_shot(np.concatenate([codes(age, 3), codes(9, 3)]))
        assert np.allclose(samples(outputs[request_id]), expected, rtol=0, atol=TOLERANCE)
    assert engine.gauges()["rerun_total"] == 1
