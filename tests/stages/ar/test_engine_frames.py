"""The engine with a framed model: frames out, sides in, waiting, ends, neighbours, preemption, seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnistage.core.params import SamplingParams
from omnistage.stages.ar.engine import ARStageEngine
from tests.stages.ar.prompts import PROMPTS, expect_empty
from tests.tiny.engines import Heard, drain, greedy, stage_request
from tests.tiny.framed import BROKEN, END, PAD, FramedDecoder, feed, framed_engine

TARGET = 7
SIDES = [11, 12, 13, 14, 15]
SEED = 6
"""None of its draws lies where rounding decides: torch does not compute a row beside others to the last bit."""
SAMPLED = SamplingParams(temperature=0.9, seed=SEED, max_tokens=12, ignore_eos=True, logit_bias={BROKEN: -100.0})


def begin(
    engine: ARStageEngine, name: str, params: SamplingParams, arrival: int = 0, prompt: list[int] | None = None
) -> None:
    engine.add(stage_request(name, [], params, arrival, targets=[TARGET]))
    feed(engine, name, 0, {"prompt": {"ids": prompt or PROMPTS[arrival]}}, {"close": True})


def frames(heard: Heard) -> list[list[int]]:
    captures = [output.capture for output in heard.outputs if output.capture is not None]
    made = [capture.numpy("frames") for capture in captures if "frames" in capture.tensors]
    found: list[list[int]] = np.concatenate(made).tolist() if made else []
    return found


def failure(heard: Heard) -> str:
    assert heard.error is not None
    return heard.error.message


def alone(folder: Path, params: SamplingParams, arrival: int = 0, sides: list[int] | None = None) -> list[list[int]]:
    engine = framed_engine(folder)
    begin(engine, "one", params, arrival)
    feed(engine, "one", 1, {"sides": SIDES if sides is None else sides}, last=True)
    return frames(drain(engine)["one"])


def test_frames_are_tokens_and_what_belongs_to_them(llama: Path) -> None:
    """Fault: a frame under another's token, one a step too late, or none at the length."""
    engine = framed_engine(llama)
    begin(engine, "one", SAMPLED)
    feed(engine, "one", 1, {"sides": SIDES}, last=True)
    heard = drain(engine)["one"]
    found = frames(heard)
    assert [frame[0] for frame in found] == heard.tokens()
    assert (len(found), heard.finish_reason, heard.usage.completion_tokens) == (12, "length", 12)
    assert next(output.capture.numpy("frames").dtype for output in heard.outputs if output.capture) == np.int32
    expect_empty(engine)


def test_a_step_waits_for_the_side_it_needs(llama: Path) -> None:
    """Fault: text that is late is replaced by padding; a stage that waits keeps the credit for what it waits for."""
    engine = framed_engine(llama)
    begin(engine, "one", SAMPLED)
    heard: list[Any] = []
    for seq, side in enumerate(SIDES, start=1):
        heard += drain(engine).get("one", Heard()).outputs
        assert len(frames(Heard(heard))) == seq  # frame s is made of sides before s alone
        assert not engine.has_work()
        feed(engine, "one", seq, {"sides": [side]})
        heard += engine.step()
    consumed = [item for output in heard for item in output.consumed]
    assert [item for item in consumed if item[1]] == [(0, seq) for seq in range(1, 6)]
    heard += drain(engine).get("one", Heard()).outputs
    assert len(frames(Heard(heard))) == len(SIDES) + 1
    feed(engine, "one", 6, last=True)
    heard += drain(engine)["one"].outputs
    assert frames(Heard(heard)) == alone(llama, SAMPLED)
    expect_empty(engine)


def test_sides_are_taken_while_the_prompt_is_computed(llama: Path) -> None:
    """Fault: a source that writes ahead waits for a long prompt, and has nothing written when it is computed."""
    engine = framed_engine(llama, max_num_batched_tokens=4, input_window=1)
    begin(engine, "one", greedy(3))
    for seq, side in enumerate(SIDES, start=1):
        feed(engine, "one", seq, {"sides": [side]}, last=side == SIDES[-1])
    (output,) = engine.step()
    assert output.consumed == ((0, len(SIDES)),)
    assert frames(drain(engine)["one"]) == alone(llama, greedy(3))


def test_sides_change_what_comes_behind_them_and_padding_is_a_side(llama: Path) -> None:
    """Fault: sides are not fed, are fed a step off, or what is missing is fed as nothing."""
    found = alone(llama, SAMPLED)
    other = alone(llama, SAMPLED, sides=[11, 12, 99])
    assert other[:3] == found[:3]
    assert other != found
    assert alone(llama, SAMPLED, sides=[11, 12, 99, PAD, PAD, PAD]) == other


def test_alone_beside_others_and_preempted(llama: Path) -> None:
    """Fault: a frame depends on the batch, on generator state, or is drawn anew when its sequence is computed again."""
    expected = [alone(llama, SAMPLED, arrival) for arrival in range(6)]
    assert expected[0] != expected[1]
    engine = framed_engine(llama, max_num_batched_tokens=24)
    for arrival in range(6):
        begin(engine, f"r{arrival}", SAMPLED, arrival)
        feed(engine, f"r{arrival}", 1, {"sides": SIDES}, last=True)
    heard = drain(engine)
    assert [frames(heard[f"r{arrival}"]) for arrival in range(6)] == expected
    tight = framed_engine(llama, max_num_seqs=1, max_num_batched_tokens=16)
    begin(tight, "one", SAMPLED, 0, PROMPTS[0])
    feed(tight, "one", 1, {"sides": SIDES}, last=True)

    def caller_reads_slowly(step: int) -> None:
        if step == 7:
            tight.set_ready("one", False)
            begin(tight, "other", SAMPLED, 1)
            feed(tight, "other", 1, {"sides": SIDES}, last=True)
        elif step == 12:
            tight.set_ready("one", True)

    heard = drain(tight, caller_reads_slowly)
    assert [frames(heard["one"]), frames(heard["other"])] == expected[:2]
    assert tight.gauges()["preemptions"] >= 1


def test_choices_of_a_request_make_frames_of_their_own(llama: Path) -> None:
    """Fault: a choice is fed the frames of another; what leaves the stage mixes them."""
    engine = framed_engine(llama)
    begin(engine, "one", SamplingParams(temperature=0.9, seed=SEED, n=2, max_tokens=6, ignore_eos=True))
    feed(engine, "one", 1, {"sides": SIDES}, last=True)
    heard = drain(engine)["one"]
    assert [frame[0] for frame in frames(heard)] == heard.tokens(0)
    assert heard.tokens(1) != heard.tokens(0)
    assert frames(heard) == alone(llama, SAMPLED)[:6]


def test_a_choice_that_has_ended_is_fed_no_more(llama: Path) -> None:
    """Fault: text that comes after one choice has ended fails the other one with it."""
    params = SamplingParams(temperature=2.0, seed=4, n=2, max_tokens=6, logit_bias={END: 5.0, BROKEN: -100.0})
    engine = framed_engine(llama)
    begin(engine, "one", params)
    heard: list[Any] = []
    for seq, side in enumerate([*SIDES, SIDES[0]], start=1):
        heard += drain(engine).get("one", Heard()).outputs
        feed(engine, "one", seq, {"sides": [side]}, last=seq > len(SIDES))
    heard += drain(engine).get("one", Heard()).outputs
    found = Heard(heard)
    assert found.error is None
    assert len(found.tokens(0)) != len(found.tokens(1))
    expect_empty(engine)


def bias_to(token: int, **changes: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, logit_bias={token: 100.0}, max_tokens=4, **changes)


def test_an_end_begins_no_frame(llama: Path) -> None:
    """Fault: the end is said as a frame; without an end it is drawn all the same and said."""
    ended = framed_engine(llama)
    begin(ended, "one", bias_to(END))
    heard = drain(ended)["one"]
    assert (frames(heard), heard.finish_reason, heard.tokens()) == ([], "stop", [END])
    endless = alone(llama, bias_to(END, ignore_eos=True))
    assert (len(endless), END in [frame[0] for frame in endless]) == (4, False)
    stopped = framed_engine(llama)
    begin(stopped, "one", bias_to(40, stop_token_ids=(40,), min_tokens=2))
    feed(stopped, "one", 1, {"sides": SIDES}, last=True)
    heard = drain(stopped)["one"]
    assert (len(frames(heard)), heard.finish_reason, heard.tokens()[-1]) == (1 + 1, "stop", 40)


def test_a_prompt_of_nothing_ends_the_request(llama: Path) -> None:
    """Fault: an answer without anything to say fails, or waits for ever."""
    for closing in ({"close": True}, None):
        engine = framed_engine(llama)
        engine.add(stage_request("one", [], greedy(5), targets=[TARGET]))
        feed(engine, "one", 0, *([closing] if closing else []), last=True)
        heard = drain(engine)["one"]
        assert (heard.finish_reason, heard.error, frames(heard)) == ("stop", None, [])
        expect_empty(engine)


def test_an_end_in_the_middle_of_the_text(llama: Path) -> None:
    """Fault: what a source still sends to a request that has ended brings the stage down, or is kept."""
    engine = framed_engine(llama)
    begin(engine, "one", SamplingParams(temperature=0.0, max_tokens=1))
    assert drain(engine)["one"].finish_reason == "length"
    feed(engine, "one", 1, {"sides": [5]})
    feed(engine, "one", 2, last=True)
    assert not engine.has_work()


def test_a_limit_beyond_the_room_is_cut(llama: Path) -> None:
    """Fault: a limit for speech of any length is refused because the text before it was long."""
    engine = framed_engine(llama, max_model_len=len(PROMPTS[0]) + 3)
    begin(engine, "one", greedy(4000))
    feed(engine, "one", 1, last=True)
    heard = drain(engine)["one"]
    assert (len(frames(heard)), heard.finish_reason) == (3, "length")


def test_a_frame_that_cannot_be_made_fails_its_request_alone(llama: Path) -> None:
    """Fault: the whole batch fails, or a frame of nothing is handed on."""
    engine = framed_engine(llama)
    begin(engine, "bad", bias_to(BROKEN), 0)
    begin(engine, "good", greedy(4), 1)
    for name in ("bad", "good"):
        feed(engine, name, 1, {"sides": SIDES}, last=True)
    heard = drain(engine)
    assert "not finite" in failure(heard["bad"])
    assert frames(heard["good"]) == alone(llama, greedy(4), 1)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([{"token_ids": [5]}], "accepted: prompt, embeds, sides"),
        ([{"prompt": {"ids": [5]}}, {"close": True}, {"prompt": {"ids": [5]}}], "that it has closed"),
        ([{"prompt": {"ids": [5]}}, {"close": True}, {"close": True}], "that it has closed"),
        ([{"prompt": {"ids": [5]}, "positions": np.zeros((3, 2), np.int32), "next_position": 2}], "accepted: [3, 1]"),
    ],
)
def test_what_a_bridge_may_not_make(llama: Path, inputs: list[dict[str, Any]], message: str) -> None:
    """Fault: a bridge's mistake is heard as silence."""
    engine = framed_engine(llama)
    engine.add(stage_request("one", [], greedy(5), targets=[TARGET]))
    feed(engine, "one", 0, *inputs)
    assert message in failure(drain(engine)["one"])


def test_rows_of_a_prompt_may_stand_elsewhere(llama: Path) -> None:
    """Fault: rows are turned by their places; those behind the prompt go on from its length; a choice forgets them."""
    params = SamplingParams(temperature=0.0, n=2, max_tokens=6, ignore_eos=True)
    told = dict[int, list[list[int]]]()
    for shift in (0, 5):
        engine = framed_engine(llama, max_num_batched_tokens=8)
        engine.add(stage_request("one", [], params, targets=[TARGET]))
        count = len(PROMPTS[0])
        positions = np.tile(np.arange(count, dtype=np.int32), (3, 1))
        positions[:, count // 2 :] += shift
        prompt = {"prompt": {"ids": PROMPTS[0]}, "positions": positions, "next_position": count + shift}
        feed(engine, "one", 0, prompt, {"close": True}, {"sides": SIDES}, last=True)
        heard = drain(engine)["one"]
        assert heard.tokens(0) == heard.tokens(1)
        told[shift] = frames(heard)
    assert told[0] == alone(llama, greedy(6))
    assert told[5] != told[0]


def test_frames_are_made_for_all_rows_of_a_step_at_once(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: sequences are completed one by one."""
    asked: list[int] = []
    whole: Callable[..., Any] = FramedDecoder.complete

    def counted(self: FramedDecoder, *given: Any) -> Any:
        asked.append(len(given[1]))
        return whole(self, *given)

    monkeypatch.setattr(FramedDecoder, "complete", counted)
    engine = framed_engine(llama)
    for arrival in range(3):
        begin(engine, f"r{arrival}", greedy(3), arrival)
        feed(engine, f"r{arrival}", 1, {"sides": SIDES}, last=True)
    drain(engine)
    assert asked == [3, 3, 3]
