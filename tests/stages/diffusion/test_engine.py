"""The engine of diffusion stages as traces, over a model of a few numbers.

Faults pinned: a picture that depends on its neighbours; a fault that hits others, or is told twice; what stays behind a request
that has left; steps that stand still while a picture is decoded; an answer that ends before its pictures.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.modeling.diffusion import Denoising, Row
from omnistage.modeling.protocols import StageInput
from omnistage.stages.base import StageOutput
from omnistage.stages.diffusion import engine as engine_module
from tests.drawing.painter import FakePainter, painter_config
from tests.stages.diffusion.stage import Stage, latents_alone

ASKS: tuple[dict[str, Any], ...] = (
    {"text": "a cat", "seed": 11, "num_inference_steps": 9},
    {
        "text": "a red dog on a hill",
        "seed": 22,
        "num_inference_steps": 3,
        "true_cfg_scale": 4.0,
        "negative_prompt": "rain",
    },
    {"text": "a cat", "seed": 33, "num_inference_steps": 6, "true_cfg_scale": 0.0, "negative_prompt": "blue"},
    {"text": "a house", "seed": 44, "num_inference_steps": 5, "height": 32},
    {"text": "the sea", "seed": 55, "num_inference_steps": 7, "n": 2},
    {"text": "a tree", "seed": 66, "num_inference_steps": 1, "width": 24},
)
EMPTY = {"running": 0, "waiting": 0, "decoding": 0, "input_nbytes": 0}


def drawn_together(stage: Stage) -> dict[int, torch.Tensor]:
    """All of ASKS, one more in every step, in an order that is not that of their ages."""
    for place, ask in enumerate(ASKS):
        stage.add(str(place), age=(place * 5) % 7, **ask)
        stage.step()
    stage.run()
    assert stage.ended() == {str(place): "done" for place in range(len(ASKS))}
    return stage.model.finished


@pytest.fixture(scope="module")
def alone() -> dict[int, torch.Tensor]:
    """The latents of every picture of ASKS, each drawn alone."""
    return {seed: made for ask in ASKS for seed, made in latents_alone(**ask).items()}


def assert_equal(made: dict[int, torch.Tensor], expected: dict[int, torch.Tensor]) -> None:
    assert made.keys() == expected.keys()
    for seed, latents in expected.items():
        assert torch.allclose(made[seed], latents, rtol=0, atol=1e-5), seed


@pytest.mark.parametrize("one_timestep", [False, True], ids=["timesteps mixed", "one timestep"])
@pytest.mark.parametrize("budget", [3, 10, 512])
def test_a_picture_is_the_same_whatever_its_neighbours(
    budget: int, one_timestep: bool, alone: dict[int, torch.Tensor]
) -> None:
    """Fault: another number of steps, guidance, size or seed in the batch, or a smaller budget, changes a picture."""
    model = FakePainter(one_timestep=one_timestep)
    assert_equal(drawn_together(Stage(painter_config(max_num_batched_tokens=budget), model)), alone)
    assert max(map(len, model.calls)) > (1 if budget > 3 else 0)


def test_pictures_differ_by_all_that_was_asked(alone: dict[int, torch.Tensor]) -> None:
    """Fault: seeds of one request draw the same picture, or guidance 0 is taken for none."""
    assert not torch.allclose(alone[55], alone[56], atol=0.1)
    plain = latents_alone(text="a cat", seed=33, num_inference_steps=6)
    assert not torch.allclose(alone[33], plain[33], atol=0.01)
    most = latents_alone(seed=2**64 - 1, n=2)
    assert sorted(most) == [0, 2**64 - 1]


@pytest.mark.parametrize("cache", ["first_block", "tea_cache"])
def test_a_cached_picture_is_that_of_the_same_cache_alone(cache: str) -> None:
    """Fault: what one picture remembers is added to another one, or a row computes because its neighbour does."""
    settings = {"residual_diff_threshold": 0.2} if cache == "first_block" else {"rel_l1_thresh": 0.5}
    config = painter_config(cache_backend=cache, cache_config=settings)
    alone = {seed: made for ask in ASKS for seed, made in latents_alone(config, **ask).items()}
    stage = Stage(config)
    assert_equal(drawn_together(stage), alone)
    gauges = stage.engine.gauges()
    assert 0.2 < gauges["block_rows_spared_total"] / gauges["block_rows_total"] < 3
    assert sum(stage.model.block_rows) == gauges["block_rows_total"]


def shown(outputs: list[StageOutput]) -> list[str]:
    """What went out, in order: p2/4 is progress, i0.1 partial picture 1 of picture 0, i0 picture 0, then reasons and errors."""
    found: list[str] = []
    for output in outputs:
        told = {} if output.capture is None else output.capture.metadata
        if "progress" in told:
            found.append(f"p{told['progress']['index']}:{told['progress']['step']}/{told['progress']['steps']}")
        elif "partial" in told:
            found.append(f"i{told['index']}.{told['partial']}")
        elif "seed" in told:
            found.append(f"i{told['index']}")
        found += [part for part in (output.finish_reason, output.error and output.error.message) if part]
    return found


def test_a_streamed_request_shows_its_progress_and_partial_pictures() -> None:
    """Fault: progress of a step that was not taken, a partial picture behind the finished one, or either for a whole answer."""
    stage = Stage()
    stage.add(stream=True, num_inference_steps=6, partial_images=2, seed=5)
    stage.run()
    said = shown(stage.outputs)
    assert [one for one in said if one[0] == "p"] == [f"p0:{step}/6" for step in range(1, 7)]
    assert [one for one in said if one[0] != "p"] == ["i0.0", "i0.1", "i0", "done"]
    assert said.index("i0.0") > said.index("p0:2/6")
    whole = Stage()
    whole.add(num_inference_steps=6, partial_images=2, seed=5)
    whole.run()
    assert shown(whole.outputs) == ["i0", "done"]
    assert torch.equal(whole.model.finished[5], stage.model.finished[5])


def test_a_partial_picture_shows_the_step_that_it_belongs_to() -> None:
    """Fault: a preview of the latents behind a step with the prediction before it; a row that stays at the first timestep."""
    stage = Stage()
    predict, preview = stage.model.predict, stage.model.preview
    read: dict[int, torch.Tensor] = {}
    showed: dict[int, torch.Tensor] = {}

    def reading(rows: Sequence[Row]) -> list[torch.Tensor]:
        read.update({row.step: row.picture.latents for row in rows})
        return predict(rows)

    def showing(picture: Denoising, prediction: torch.Tensor, step: int) -> np.ndarray[Any, Any]:
        showed[step] = picture.latents
        return preview(picture, prediction, step)

    stage.model.predict, stage.model.preview = reading, showing  # type: ignore[method-assign]
    stage.add(stream=True, num_inference_steps=6, partial_images=2)
    stage.run()
    assert sorted(read) == list(range(6))
    assert {step: torch.equal(latents, read[step]) for step, latents in showed.items()} == {1: True, 3: True}


def test_a_picture_carries_its_index_and_its_seed() -> None:
    """Fault: nobody can draw the second of three pictures again."""
    stage = Stage()
    stage.add(n=3, seed=7)
    stage.run()
    told = [output.capture.metadata for output in stage.outputs if output.capture is not None]
    assert told == [{"index": index, "seed": 7 + index} for index in range(3)]
    last = stage.outputs[-1]
    assert (last.finish_reason, last.usage.images) == ("done", 3)
    assert last.times.prepare_s is not None
    assert 0 <= last.times.prepare_s <= last.times.queued_s
    assert last.times.forward_s > 0


def test_steps_go_on_while_a_picture_is_decoded() -> None:
    """Fault: everybody waits for the decoder."""
    stage = Stage()
    stage.model.hold = threading.Event()
    stage.add("a", num_inference_steps=1)
    stage.add("b", age=1, num_inference_steps=5)
    stage.step(6)
    assert (len(stage.model.calls), stage.ended()) == (5, {})
    assert stage.engine.gauges()["decoding"] == 2
    began_s = time.monotonic()
    assert stage.step() == []
    assert 0.5 * engine_module.DECODE_WAIT_S < time.monotonic() - began_s < 1.0
    stage.model.hold.set()
    stage.run()
    assert stage.ended() == {"a": "done", "b": "done"}


def test_a_request_that_is_decoded_gives_its_slot_back() -> None:
    """Fault: the next one waits for a decoder that does not need its slot."""
    stage = Stage(painter_config(max_num_seqs=1))
    stage.model.hold = threading.Event()
    stage.add("a", num_inference_steps=1)
    stage.add("b", age=1, num_inference_steps=1, text="a dog")
    stage.step(4)
    assert stage.model.calls == [["a cat"], ["a dog"]]
    assert stage.engine.gauges()["running"] == 2
    stage.model.hold.set()
    stage.run()


def test_a_decoder_that_hangs_is_the_stage_that_hangs() -> None:
    """Fault: steps that wait a little each hide from whoever watches over them that nothing goes on."""
    stage = Stage(painter_config(step_timeout_s=0.05))
    stage.model.hold = threading.Event()
    stage.add("a", num_inference_steps=1)
    stage.add("b", age=1, num_inference_steps=150)
    stage.step(3)
    time.sleep(0.1)
    stuck = threading.Thread(target=stage.step, daemon=True)
    stuck.start()
    stuck.join(0.2)
    assert stuck.is_alive()
    stage.model.hold.set()
    stuck.join(5.0)
    assert stage.ended() == {"a": "done"}


FAULTS = {
    "fail": "told to fail",
    "unsolved": "no solution",
    "undecodable": "nobody can see",
    "unreadable": "nobody can read",
}


@pytest.mark.parametrize(("word", "says"), FAULTS.items())
def test_a_fault_is_that_of_its_request_alone(word: str, says: str, alone: dict[int, torch.Tensor]) -> None:
    """Fault: one bad picture fails the batch, is tried for ever, or leaves its neighbours another picture."""
    stage = Stage()
    stage.add("bad", word, n=2, seed=90, num_inference_steps=4)
    assert_equal({seed: made for seed, made in drawn_with(stage).items() if seed < 90}, alone)
    ended = stage.ended()
    assert says in ended.pop("bad")
    assert set(ended.values()) == {"done"}
    assert len([output for output in stage.outputs if output.error is not None]) == 1
    assert stage.engine.gauges().items() >= EMPTY.items()


def drawn_with(stage: Stage) -> dict[int, torch.Tensor]:
    """All of ASKS at once, beside what the stage has already."""
    for place, ask in enumerate(ASKS):
        stage.add(str(place), age=place + 1, **ask)
    stage.run()
    return stage.model.finished


def test_a_step_that_failed_has_not_happened() -> None:
    """Fault: a solver steps twice, or a picture goes on from a half made step, after a batch was taken apart."""
    stage = Stage()
    stage.add("good", "a cat", seed=11, num_inference_steps=9)
    stage.step(5)
    stage.add("bad", "fail", age=1)
    stage.run()
    assert (stage.engine.gauges()["rerun_total"], stage.engine.gauges()["picture_steps_total"]) == (1, 9)
    assert_equal(stage.model.finished, latents_alone(text="a cat", seed=11, num_inference_steps=9))


@pytest.mark.parametrize("steps", range(7))
def test_a_cancelled_request_leaves_nothing(steps: int) -> None:
    """Fault: a slot, a picture that waits to be decoded, or a word of a request that is gone."""
    stage = Stage(painter_config(max_num_seqs=1))
    stage.model.hold = threading.Event()
    stage.add("a", n=2, num_inference_steps=3, true_cfg_scale=2.0, stream=True, partial_images=1)
    stage.add("b", age=1, text="a dog", num_inference_steps=2, seed=3)
    stage.step(steps)
    stage.engine.cancel("a")
    stage.engine.cancel("nobody")
    stage.model.hold.set()
    stage.outputs.clear()
    stage.run()
    assert {output.request_id for output in stage.outputs} == {"b"}
    assert stage.engine.gauges().items() >= EMPTY.items()
    assert stage.engine.gauges()["condition_nbytes"] > 0
    assert_equal({3: stage.model.finished[3]}, latents_alone(text="a dog", num_inference_steps=2, seed=3))


def test_a_prompt_of_a_request_that_is_gone_is_not_encoded() -> None:
    """Fault: work for nobody, or a stage that dies of a request it has forgotten."""
    stage = Stage(painter_config(max_num_batched_tokens=1))
    for place, text in enumerate(("one", "two", "three")):
        stage.add(str(place), text, age=place)
    stage.step()
    stage.engine.cancel("1")
    stage.run()
    assert stage.model.encoded == [["one"], ["three"]]
    assert stage.ended() == {"0": "done", "2": "done"}


def test_a_request_that_may_not_hand_over_rests_and_goes_on() -> None:
    """Fault: pictures are made for a caller who takes none, or another picture after the rest."""
    stage = Stage(painter_config(max_num_seqs=1))
    stage.add("a", num_inference_steps=6, seed=9)
    stage.step(3)
    stage.engine.set_ready("a", False)
    stage.step()
    assert not stage.engine.has_work()
    stage.add("b", age=1, text="a dog", num_inference_steps=2)
    stage.run()
    assert stage.ended() == {"b": "done"}
    assert stage.engine.gauges()["parked_total"] == 1
    stage.engine.set_ready("a", True)
    stage.engine.set_ready("nobody", True)
    stage.run()
    assert_equal({9: stage.model.finished[9]}, latents_alone(num_inference_steps=6, seed=9))


def test_conditions_and_steps_take_turns() -> None:
    """Fault: pictures stand still until the last newcomer is encoded, or newcomers until the pictures are finished."""
    stage = Stage(painter_config(max_num_batched_tokens=4))
    for place in range(3):
        stage.add(str(place), f"word{place} and more", age=place, num_inference_steps=8)
    kinds: list[str] = []
    while len(stage.model.encoded) < 3:
        before = len(stage.model.encoded)
        stage.step()
        kinds.append("encode" if len(stage.model.encoded) > before else "denoise")
    assert kinds == ["encode", "denoise", "encode", "denoise", "encode"]


def test_equal_prompts_are_encoded_once() -> None:
    """Fault: the text encoder runs for every picture of the same prompt."""
    stage = Stage()
    for place in range(3):
        stage.add(str(place), "a cat", age=place, true_cfg_scale=2.0)
    stage.run()
    stage.add("later", "a cat", age=9)
    stage.run()
    assert stage.model.encoded == [["a cat", ""]]
    assert stage.engine.gauges()["condition_hits_total"] == 1


# ---- a stage behind others -------------------------------------------------------------------------------------------


def fed() -> Stage:
    return Stage(painter_config(input_sources=(7,), processor=None, bridge="x:y", input_window=1), entry=False)


def test_a_fed_request_begins_with_its_input_and_ends_with_its_sources() -> None:
    """Fault: credit that comes late or never, a picture before the prompt is whole, an end before the last item."""
    stage = fed()
    stage.add()
    stage.step()
    assert not stage.engine.has_work()
    stage.feed("a ", seq=0)
    stage.feed("cat", seq=1)
    assert [output.consumed for output in stage.step()] == [((7, 1),)]
    assert (stage.engine.has_work(), stage.model.encoded) == (False, [])
    stage.feed(None, seq=2, last=True)
    stage.run()
    assert stage.model.encoded == [["a cat"]]
    assert stage.ended() == {"r": "done"}


def test_a_request_that_gets_no_input_draws_nothing() -> None:
    """Fault: a source that had nothing to say leaves the request open for ever."""
    stage = fed()
    stage.add()
    stage.feed(None, last=True)
    stage.run()
    assert (stage.ended(), stage.outputs[-1].usage.images, stage.outputs[-1].consumed) == ({"r": "done"}, 0, ((7, 0),))


def test_items_out_of_order_and_second_inputs_fail_their_request() -> None:
    """Fault: a lost item, or one input too many, draws another picture in silence."""
    stage = fed()
    stage.add("a")
    stage.feed("x", "a", seq=1)
    stage.feed("x", "nobody", seq=1)
    entry = Stage()
    entry.engine._admission._processor = lambda request: [StageInput({"text": text}) for text in ("one", "two")]
    entry.add("b")
    for one in (stage, entry):
        one.run()
    assert "came where item 0 was due" in stage.ended()["a"]
    assert "a second input came" in entry.ended()["b"]


# ---- anything at any time --------------------------------------------------------------------------------------------


def moments() -> st.SearchStrategy[list[tuple[int, int]]]:
    """(request, steps before the next thing happens to it)"""
    return st.lists(st.tuples(st.integers(0, len(ASKS) - 1), st.integers(0, 3)), max_size=8)


@settings(max_examples=25, deadline=None)
@given(
    cancels=moments(),
    rests=moments(),
    budget=st.sampled_from([1, 8, 512]),
    cache=st.sampled_from(["none", "first_block"]),
)
def test_whatever_happens_to_others_a_picture_stays_the_same(
    cancels: list[tuple[int, int]], rests: list[tuple[int, int]], budget: int, cache: str
) -> None:
    """Fault: any order of cancellations and rests after which something is left, or a picture is another one."""
    config = painter_config(max_num_batched_tokens=budget, max_num_seqs=3, cache_backend=cache)
    stage = Stage(config)
    for place, ask in enumerate(ASKS):
        stage.add(str(place), age=place, **ask)
    events = [("cancel", *moment) for moment in cancels] + [("rest", *moment) for moment in rests]
    for kind, place, steps in events:
        if kind == "cancel":
            stage.engine.cancel(str(place))
        else:
            stage.engine.set_ready(str(place), False)
        stage.step(steps)
    for place in range(len(ASKS)):
        stage.engine.set_ready(str(place), True)
    stage.run()
    gone = {str(place) for place, _ in cancels}
    assert set(stage.ended()) | gone == {str(place) for place in range(len(ASKS))}
    assert stage.engine.gauges().items() >= EMPTY.items()
    for seed, latents in stage.model.finished.items():
        assert torch.allclose(latents, _alone(cache)[seed], rtol=0, atol=1e-5)


_ALONE: dict[str, dict[int, torch.Tensor]] = {}


def _alone(cache: str) -> dict[int, torch.Tensor]:
    if cache not in _ALONE:
        config = painter_config(cache_backend=cache)
        _ALONE[cache] = {seed: made for ask in ASKS for seed, made in latents_alone(config, **ask).items()}
    return _ALONE[cache]
