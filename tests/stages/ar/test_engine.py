"""The engine with a tiny real model: parameters, choices, stops, neighbours, failures, credit, what is left behind."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from omnistage.core.errors import UnsupportedByModelError
from omnistage.core.params import SamplingParams
from omnistage.modeling.protocols import ProcessedPrompt
from omnistage.modeling.step import ARStep, StepRows
from omnistage.modeling.tensors import to_torch
from omnistage.models.causal_lm.loader import load
from omnistage.models.causal_lm.processor import load_processor
from omnistage.stages.ar.build import ar_engine
from omnistage.stages.ar.engine import ARStageEngine
from omnistage.stages.base import PreparedInput
from omnistage.wire.messages import CLIENT
from tests.stages.ar.prompts import LONG, PROMPTS, expect_empty
from tests.tiny.checkpoints import VOCAB_SIZE, train_tokenizer
from tests.tiny.engines import Heard, answer, answers, build, drain, greedy, stage_config, stage_request
from tests.tiny.references import load_reference

SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=17, max_tokens=20, ignore_eos=True)


# ---- seeds -----------------------------------------------------------------------------------------------------------


def neighbours(engine: ARStageEngine, count: int) -> None:
    """Others with all kinds of parameters, some older and some younger."""
    chance = random.Random(5)
    for number in range(count):
        params = SamplingParams(
            temperature=chance.choice([0.0, 0.7, 1.5]),
            top_k=chance.choice([0, 5, 50]),
            repetition_penalty=chance.choice([1.0, 1.1]),
            seed=number,
            max_tokens=chance.randrange(5, 30),
        )
        engine.add(stage_request(f"n{number}", PROMPTS[number + 1], params, number + 1 - count // 2))


def test_a_seeded_request_alone_among_neighbours_and_preempted(llama: Path, engine: ARStageEngine) -> None:
    """Fault: a draw depends on generator state, on the batch, or on how often the request was computed."""
    alone = answer(engine, PROMPTS[0], SAMPLED)
    neighbours(engine, 31)
    engine.add(stage_request("one", PROMPTS[0], SAMPLED, 0))
    assert drain(engine)["one"].tokens() == alone.tokens()
    expect_empty(engine)
    tight = build(llama, max_num_seqs=2, max_num_batched_tokens=24)
    tight.add(stage_request("one", PROMPTS[0], SAMPLED, 50))

    def older_ones_come(step: int) -> None:
        if step in (4, 9):
            for number in range(2):
                tight.add(stage_request(f"{step}-{number}", PROMPTS[number + 1], greedy(4), step + number))

    assert drain(tight, older_ones_come)["one"].tokens() == alone.tokens()
    assert tight.gauges()["preemptions"] >= 2


def test_a_request_that_has_lent_its_seat_draws_what_it_would_have_drawn(llama: Path, engine: ARStageEngine) -> None:
    """Fault: a request whose caller reads slowly goes on with other tokens, says one twice, or keeps others out for ever."""
    alone = answer(engine, PROMPTS[0], SAMPLED)
    tight = build(llama, max_num_seqs=1)
    tight.add(stage_request("slow", PROMPTS[0], SAMPLED, 0))
    tight.add(stage_request("other", PROMPTS[1], greedy(20), 1))

    def caller_reads_slowly(step: int) -> None:
        if step in (5, 14):
            tight.set_ready("slow", False)
        elif step in (8, 16):
            tight.set_ready("slow", True)

    heard = drain(tight, caller_reads_slowly)
    assert heard["slow"].tokens() == alone.tokens()
    assert heard["other"].tokens() == answer(engine, PROMPTS[1], greedy(20)).tokens()
    assert tight.gauges()["preemptions"] >= 2
    expect_empty(tight)


def test_streamed_parts_joined_are_the_answer(engine: ARStageEngine) -> None:
    """Fault: deltas that repeat or drop text; a step that reports nothing for a token."""
    heard = answer(engine, PROMPTS[0], SAMPLED)
    assert [len(choice["token_ids"]) for choice in heard.choices(0)] == [1] * 20
    assert heard.text() == train_tokenizer().decode(heard.tokens())


def test_seeds_and_choices_differ(engine: ARStageEngine) -> None:
    """Fault: every choice draws the same; the seed is not used; without a seed a replay draws otherwise."""
    params = SamplingParams(seed=1, n=3, max_tokens=12, ignore_eos=True)
    heard = answer(engine, PROMPTS[0], params)
    assert len({tuple(heard.tokens(index)) for index in range(3)}) == 3
    again = answer(engine, PROMPTS[0], SamplingParams(seed=2, max_tokens=12, ignore_eos=True))
    assert again.tokens() != heard.tokens()
    unseeded = SamplingParams(max_tokens=12, ignore_eos=True)
    assert answer(engine, PROMPTS[0], unseeded).tokens() == answer(engine, PROMPTS[0], unseeded).tokens()


# ---- choices and ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("caching", [True, False])
def test_choices_share_the_prompt_and_end_by_themselves(llama: Path, caching: bool) -> None:
    """Fault: choices disturb each other through shared blocks; the request ends with the first; usage counts one only."""
    engine = build(llama, enable_prefix_caching=caching, max_num_seqs=3)
    prompt = next(prompt for prompt in PROMPTS if len(prompt) > 34)
    params = SamplingParams(seed=1, n=5, max_tokens=14)
    heard = answer(engine, prompt, params)
    for index in range(5):
        assert heard.reason(index) in {"stop", "length"}
    assert heard.finish_reason == heard.reason(0)
    assert heard.usage.completion_tokens == sum(len(heard.tokens(index)) for index in range(5))
    assert heard.usage.prompt_tokens == len(prompt)
    assert heard.tokens() == answer(engine, prompt, SamplingParams(seed=1, max_tokens=14)).tokens()
    expect_empty(engine)


def test_the_end_of_text_ends(engine: ARStageEngine) -> None:
    """Fault: the model's end token is not read from its folder."""
    params = SamplingParams(temperature=0.0, logit_bias={1: 100.0}, max_tokens=5)
    heard = answer(engine, PROMPTS[0], params)
    assert (heard.tokens(), heard.text(), heard.finish_reason) == ([1], "", "stop")


def test_min_tokens_keeps_the_end_away(engine: ARStageEngine) -> None:
    """Fault: a bias towards the end wins over min_tokens."""
    params = SamplingParams(temperature=0.0, logit_bias={1: 100.0}, max_tokens=9, min_tokens=4)
    heard = answer(engine, PROMPTS[0], params)
    assert heard.tokens()[-1] == 1
    assert (len(heard.tokens()), 1 in heard.tokens()[:-1]) == (5, False)


def test_a_stop_string_across_tokens(engine: ARStageEngine) -> None:
    """Fault: a stop string is missed at a border of tokens, or the streamed text has shown its beginning."""
    plain = answer(engine, PROMPTS[0], greedy(20))
    text = plain.text()
    tokenizer = train_tokenizer()
    border = len(tokenizer.decode(plain.tokens()[:8]).rstrip("\ufffd"))
    stop = text[border - 2 : border + 2]
    heard = answer(engine, PROMPTS[0], greedy(20, stop=(stop,)))
    assert heard.text() == text[: text.index(stop)]
    assert heard.finish_reason == "stop"
    assert len(heard.tokens()) < 20


def test_max_tokens_none_goes_to_the_end_of_the_model(llama: Path) -> None:
    """Fault: an unlimited answer stops early or overruns the block table."""
    engine = build(llama, max_model_len=50)
    heard = answer(engine, PROMPTS[0][:20], greedy(None))
    assert len(PROMPTS[0][:20]) + len(heard.tokens()) == 50
    assert heard.finish_reason == "length"


def test_logprobs_are_those_of_transformers(llama: Path, engine: ARStageEngine) -> None:
    """Fault: log probabilities of another row or another distribution."""
    heard = answer(engine, PROMPTS[0], SamplingParams(seed=3, temperature=0.8, top_k=4, logprobs=3, max_tokens=6))
    ids = PROMPTS[0] + heard.tokens()
    with torch.inference_mode():
        wanted = load_reference(llama)(torch.tensor([ids])).logits[0].log_softmax(-1)
    for step, entry in enumerate(heard.logprobs()):
        row = wanted[len(PROMPTS[0]) - 1 + step]
        assert entry["token_id"] == heard.tokens()[step]
        assert entry["logprob"] == pytest.approx(float(row[entry["token_id"]]), abs=1e-3)
        assert [token for token, _, _ in entry["top"]] == row.topk(3).indices.tolist()


def test_a_reset_cache_gives_no_hit_and_the_same_tokens(engine: ARStageEngine) -> None:
    """Fault: the control call is accepted and does nothing; another one's name is accepted."""
    long = [5 + index % 50 for index in range(60)]
    first = answer(engine, long, greedy(4))
    assert answer(engine, long, greedy(4)).usage.cached_tokens > 0
    assert engine.control("reset_prefix_cache", {})["blocks"] > 0
    again = answer(engine, long, greedy(4))
    assert (again.usage.cached_tokens, again.tokens()) == (0, first.tokens())
    with pytest.raises(UnsupportedByModelError, match="reset_prefix_cache"):
        engine.control("sleep", {})


# ---- failures --------------------------------------------------------------------------------------------------------


class Faulty:
    """A model that fails, or makes rubbish, as long as the token `trigger` is in a step."""

    def __init__(self, model: Any, trigger: int, *, rubbish: bool = False, times: int = 10**9) -> None:
        self._model, self._trigger, self._rubbish, self._times = model, trigger, rubbish, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, step: StepRows, *rest: Any) -> ARStep:
        made: ARStep = self._model.forward(step, *rest)
        hit = self._trigger in step.tokens and self._times > 0
        self._times -= hit
        if hit and not self._rubbish:
            raise RuntimeError("out of luck")
        return ARStep(made.logits * float("nan"), made.hidden) if hit else made


def faulty_engine(folder: Path, **named: Any) -> ARStageEngine:
    config = stage_config(folder)
    return ar_engine(config, Faulty(load(config), 300, **named), load_processor(config))


def test_only_those_fail_that_fail_alone(llama: Path, engine: ARStageEngine) -> None:
    """Fault: one request that breaks a batch takes all of it down, or the loop with it."""
    prompts = [[5, 6, 7], [8, 300, 9], [10, 11]]
    broken = faulty_engine(llama)
    heard = answers(broken, prompts, greedy(4))
    assert heard[1].error is not None
    assert (heard[1].error.code, heard[1].error.stage) == ("stage_failed", "llm")
    assert "out of luck" in heard[1].error.message
    for index in (0, 2):
        assert heard[index].tokens() == answer(engine, prompts[index], greedy(4)).tokens()
    expect_empty(broken)


def test_a_fault_that_does_not_come_back_fails_nobody(llama: Path, engine: ARStageEngine) -> None:
    """Fault: a passing failure ends requests that would have succeeded."""
    broken = faulty_engine(llama, times=1)
    prompts = [[5, 6, 7], [8, 300, 9]]
    heard = answers(broken, prompts, greedy(4, logit_bias={300: -100.0}))
    assert [one.error for one in heard] == [None, None]
    assert broken.gauges()["batches_rerun"] == 1


def test_logits_that_are_not_finite_fail_their_request(llama: Path) -> None:
    """Fault: rubbish comes out as token 0."""
    broken = faulty_engine(llama, rubbish=True)
    heard = answer(broken, [300], greedy(4))
    assert heard.error is not None
    assert "not finite" in heard.error.message
    expect_empty(broken)


# ---- credit and cancelling -------------------------------------------------------------------------------------------


def test_a_request_without_credit_rests_and_goes_on(engine: ARStageEngine) -> None:
    """Fault: a request is stepped although its target cannot take more; its state is lost while it rests."""
    expected = answer(engine, PROMPTS[0], greedy(8)).tokens()
    engine.add(stage_request("one", PROMPTS[0], greedy(8)))
    heard = Heard(engine.step() + engine.step())
    engine.set_ready("one", False)
    assert not engine.has_work()
    assert engine.step() == []
    engine.set_ready("one", True)
    heard.outputs += drain(engine)["one"].outputs
    assert heard.tokens() == expected
    engine.set_ready("unknown", True)


def test_cancelled_requests_give_their_memory_back(engine: ARStageEngine) -> None:
    """Fault: blocks, slots or choices of a cancelled request stay behind."""
    for arrival, prompt in enumerate(PROMPTS[:10]):
        engine.add(stage_request(f"r{arrival}", prompt, greedy(30, n=2), arrival))
    engine.step()
    engine.step()
    for arrival in range(10):
        engine.cancel(f"r{arrival}")
        engine.interrupt(f"r{arrival}")
    engine.cancel("unknown")
    assert engine.step() == []
    expect_empty(engine)


def test_a_refused_request_that_is_cancelled_says_nothing(engine: ARStageEngine) -> None:
    """Fault: an error for a request that nobody knows any more."""
    engine.add(stage_request("bad", [VOCAB_SIZE], greedy(1)))
    engine.cancel("bad")
    assert engine.step() == []


def test_times_and_usage_are_told_at_the_end(engine: ARStageEngine) -> None:
    """Fault: durations that are negative, missing, or counted once for every choice."""
    heard = answer(engine, PROMPTS[0], greedy(2, n=4))
    times = heard.outputs[-1].times
    assert times.prepare_s is not None
    assert 0 < times.prepare_s <= times.queued_s
    assert 0 < times.forward_s <= times.running_s
    assert heard.usage.prompt_tokens == len(PROMPTS[0])
    assert heard.usage.completion_tokens == 8


def test_a_prompt_that_was_prepared_elsewhere_is_taken_as_it_is(engine: ARStageEngine) -> None:
    """Fault: a prompt is prepared twice; the time for which it was prepared elsewhere is lost."""
    asked = stage_request("one", [VOCAB_SIZE], greedy(3))  # would be refused
    prepared = PreparedInput(ProcessedPrompt(tuple(PROMPTS[0])), prepare_s=2.0, elapsed_s=3.0)
    engine.add(dataclasses.replace(asked, prepared=prepared))
    heard = drain(engine)["one"]
    assert heard.tokens() == answer(engine, PROMPTS[0], greedy(3)).tokens()
    times = heard.outputs[-1].times
    assert (times.prepare_s, int(times.queued_s)) == (2.0, 3)


# ---- hidden states ---------------------------------------------------------------------------------------------------


def hidden_engine(folder: Path, **changes: Any) -> ARStageEngine:
    return build(folder, extras={"capture_layers": [0, 2, 4]}, max_num_batched_tokens=8, **changes)


def joined(heard: Heard, name: str) -> torch.Tensor:
    captures = [output.capture for output in heard.outputs if output.capture is not None]
    return torch.cat([to_torch(capture.tensors[name]) for capture in captures if capture.tensors])


def test_hidden_states_are_those_of_transformers_each_row_once(llama: Path) -> None:
    """Fault: rows of neighbours, of another layer, twice after a prefix hit or a preemption, or not at all."""
    engine = hidden_engine(llama, max_num_seqs=1)
    answer(engine, PROMPTS[0], greedy(1))
    engine.add(stage_request("one", PROMPTS[0], greedy(6), 5, targets=(CLIENT, 1)))

    def an_older_one_comes(step: int) -> None:
        if step == 3:
            engine.add(stage_request("older", PROMPTS[1], greedy(2), 1))

    heard = drain(engine, an_older_one_comes)
    assert engine.gauges()["preemptions"] == 1
    ids = PROMPTS[0] + heard["one"].tokens()[:-1]
    with torch.inference_mode():
        wanted = load_reference(llama)(torch.tensor([ids]), output_hidden_states=True).hidden_states
    for layer in (0, 2, 4):
        found = joined(heard["one"], f"hidden_{layer}")
        assert found.shape == wanted[layer][0].shape
        assert torch.allclose(found, wanted[layer][0], atol=1e-4)
    assert heard["older"].outputs[0].capture is None or not heard["older"].outputs[0].capture.tensors


def test_positions_tell_which_rows_came(llama: Path) -> None:
    """Fault: a target cannot tell which rows of the prompt it got."""
    engine = hidden_engine(llama)
    engine.add(stage_request("one", list(range(5, 25)), greedy(2), targets=(1,)))
    spans = [output.capture.metadata["positions"] for output in drain(engine)["one"].outputs if output.capture]
    assert spans == [[0, 8], [8, 16], [16, 20], [20, 21]]


def test_bfloat16_runs(checkpoint: Callable[[str], Path]) -> None:
    """Fault: a dtype that is only right in float32: masks, caches, positions."""
    engine = build(checkpoint("qwen3"), dtype="bfloat16")
    heard = answers(engine, PROMPTS[:4], greedy(8))
    assert [len(one.tokens()) for one in heard] == [8] * 4


def test_a_call_resets_the_prefix_cache(llama: Path) -> None:
    """Fault: a reset that is acknowledged and does nothing; a call that is unknown and is acknowledged."""
    engine = build(llama)
    expected = answer(engine, LONG[0], greedy(4)).tokens()
    assert answer(engine, LONG[0], greedy(4)).usage.cached_tokens == 32
    assert engine.control("reset_prefix_cache", {})["blocks"] >= 2
    heard = answer(engine, LONG[0], greedy(4))
    assert (heard.usage.cached_tokens, heard.tokens()) == (0, expected)
    with pytest.raises(UnsupportedByModelError, match="no_such_call: accepted: reset_prefix_cache"):
        engine.control("no_such_call", {})
