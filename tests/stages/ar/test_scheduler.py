"""What the scheduler decides, read as traces: sequences are named by letters, a plan by how many tokens each gets."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.core.errors import InvalidRequestError
from omnistage.stages.ar.block_manager import BlockManager
from omnistage.stages.ar.plan import SequenceKey, Span, StepPlan
from omnistage.stages.ar.scheduler import Limits, Scheduler
from omnistage.stages.ar.sequence import NO_SLOT, SequenceState

BLOCK = 4


class Bench:
    """A scheduler whose model samples the token 7 for ever; `done` at `max_len`."""

    def __init__(self, blocks: int = 32, **limits: Any) -> None:
        held = limits.pop("held", None)
        known = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64, **limits}
        self.scheduler = Scheduler(Limits(**known), BlockManager(blocks + 1, BLOCK), held)
        self.sequences: dict[SequenceKey, SequenceState] = {}

    def add(
        self, name: str, prompt_len: int, answer: int = 4, *, order: int | None = None, **named: Any
    ) -> SequenceState:
        index = named.pop("choice", 0)
        first = named.pop("first", 100 * ord(name))
        sequence = SequenceState(
            SequenceKey(name, index),
            (0, ord(name) if order is None else order, index),
            list(range(first, first + prompt_len)),
            prompt_len + answer,
            **named,
        )
        self.sequences[sequence.key] = sequence
        self.scheduler.add(sequence)
        return sequence

    def plan(self) -> StepPlan:
        return self.scheduler.schedule()

    def commit(self, plan: StepPlan) -> dict[str, int]:
        """Everything that was planned is computed; {name: tokens}."""
        for row in plan.rows:
            sequence = self.sequences[row.key]
            assert row.tokens == tuple(sequence.tokens[row.start : row.end])
            self.scheduler.commit(row)
            if row.samples:
                self.scheduler.append(row.key, [7])
                if len(sequence.tokens) >= sequence.max_len:
                    self.scheduler.remove(row.key)
                    del self.sequences[row.key]
        return {row.key.request_id + "'" * row.key.choice: len(row.tokens) for row in plan.rows}

    def step(self) -> dict[str, int]:
        return self.commit(self.plan())

    def check(self) -> None:
        """Every block is counted exactly as often as it stands in a table; slots are held once."""
        manager = self.scheduler.blocks
        held = Counter(block for sequence in self.sequences.values() for block in sequence.blocks)
        assert [manager.references(block) for block in range(manager.num_blocks)] == [
            held[block] for block in range(manager.num_blocks)
        ]
        assert manager.num_free == manager.capacity - len(held)
        slots = [sequence.slot for sequence in self.sequences.values() if sequence.slot != NO_SLOT]
        assert len(set(slots)) == len(slots) == self.scheduler.num_running


# ---- order, budget, chunks -------------------------------------------------------------------------------------------


def test_prompts_fill_the_budget_in_order_of_arrival() -> None:
    """Fault: the younger goes first, or a chunk exceeds the budget."""
    bench = Bench()
    bench.add("b", 10)
    bench.add("a", 10)
    assert bench.step() == {"a": 10, "b": 6}
    assert bench.step() == {"a": 1, "b": 4}


def test_decodes_go_before_a_long_prompt() -> None:
    """Fault: everybody waits while one long prompt is computed."""
    bench = Bench()
    bench.add("b", 3)
    bench.step()
    bench.add("a", 40)
    assert bench.step() == {"b": 1, "a": 15}


def test_decodes_leave_a_token_for_a_prompt() -> None:
    """Fault: as many decodes as budget keep a prompt out until they end."""
    bench = Bench(max_num_batched_tokens=2)
    for name in "bc":
        bench.add(name, 1, answer=30)
    bench.step()
    bench.step()
    bench.add("a", 4)
    assert bench.step() == {"b": 1, "a": 1}


def test_nothing_is_left_for_a_prompt_that_has_no_slot() -> None:
    """Fault: the youngest decode stands still for the sake of a request that cannot come in anyway."""
    bench = Bench(max_num_batched_tokens=2, max_num_seqs=2)
    for name in "bcd":
        bench.add(name, 1, answer=9)
    assert [bench.step() for _ in range(2)] == [{"b": 1, "c": 1}] * 2


def test_a_budget_of_one_serves_the_decode() -> None:
    """Fault: with a budget of one nothing is left for anybody."""
    bench = Bench(max_num_batched_tokens=1)
    bench.add("a", 1)
    bench.add("b", 2)
    assert [bench.step() for _ in range(5)] == [{"a": 1}, {"a": 1}, {"a": 1}, {"a": 1}, {"b": 1}]


def test_a_whole_prompt_waits_for_room_in_the_budget_where_chunks_are_off() -> None:
    """Fault: a prompt is cut although chunks are off; one longer than the budget waits for ever."""
    bench = Bench(enable_chunked_prefill=False)
    bench.add("a", 10)
    bench.add("b", 10)
    bench.add("c", 30)
    assert bench.step() == {"a": 10}
    assert bench.step() == {"a": 1, "b": 10}
    assert bench.step() == {"a": 1, "b": 1, "c": 30}


def test_the_rest_of_a_running_prompt_is_whole_too() -> None:
    """Fault: the rest of a prompt that came in parts is cut although chunks are off."""
    bench = Bench(enable_chunked_prefill=False, max_num_batched_tokens=8)
    opened = [bench.add(name, 4, is_open=True) for name in "ab"]
    assert bench.step() == {"a": 3, "b": 3}
    for sequence in opened:
        bench.scheduler.append(sequence.key, list(range(7)))
        bench.scheduler.close_prompt(sequence.key, 20)
    assert bench.step() == {"a": 8}
    assert bench.step() == {"a": 1, "b": 8}


def test_priority_comes_before_arrival() -> None:
    """Fault: the order of requests is taken from somewhere else than `order`."""
    bench = Bench()
    bench.add("a", 16, order=9)
    bench.add("b", 16, order=1)
    assert bench.step() == {"b": 16}


# ---- slots, blocks, preemption ---------------------------------------------------------------------------------------


def test_an_older_one_takes_the_slot_of_the_youngest() -> None:
    """Fault: a late but preferred request waits behind younger ones; the wrong one loses its place."""
    bench = Bench(max_num_seqs=2)
    bench.add("b", 3)
    bench.add("c", 3)
    bench.step()
    bench.add("a", 3)
    plan = bench.plan()
    assert plan.preempted == (SequenceKey("c", 0),)
    assert bench.commit(plan) == {"b": 1, "a": 3}
    bench.check()


def test_whoever_loses_its_place_gives_its_share_of_the_budget_back() -> None:
    """Fault: budget that was planned for a request that is not in the step any more; tokens that count as computed."""
    bench = Bench(max_num_seqs=1, max_num_batched_tokens=4)
    loser = bench.add("b", 2)
    bench.step()
    bench.add("a", 8)
    assert bench.step() == {"a": 4}
    assert (loser.computed, loser.remaining, loser.blocks) == (0, 3, [])


def test_nobody_slips_in_where_an_older_one_lost_its_place() -> None:
    """Fault: the room that one request took from another goes to a third, which is younger than both."""
    bench = Bench(blocks=8, max_num_batched_tokens=40, max_model_len=32)
    bench.add("d", 20)
    bench.step()
    bench.add("e", 16)
    assert bench.step() == {"d": 1}
    bench.add("a", 16)
    plan = bench.plan()
    assert plan.preempted == (SequenceKey("d", 0),)
    assert bench.commit(plan) == {"a": 16}


def test_a_younger_one_waits_for_a_slot() -> None:
    """Fault: preemption the wrong way round."""
    bench = Bench(max_num_seqs=1)
    bench.add("a", 3, answer=2)
    bench.step()
    bench.add("b", 3)
    assert [bench.step() for _ in range(2)] == [{"a": 1}, {"b": 3}]


def test_a_decode_takes_blocks_from_a_younger_one() -> None:
    """Fault: the older stands still, or the younger keeps its place in the plan without its blocks."""
    bench = Bench(blocks=4, max_model_len=16)
    bench.add("a", 8, answer=8)
    bench.add("b", 7, answer=8)
    assert bench.step() == {"a": 8, "b": 7}
    plan = bench.plan()
    assert plan.preempted == (SequenceKey("b", 0),)
    assert bench.commit(plan) == {"a": 1}
    bench.check()


def test_a_younger_one_stands_still_when_the_older_need_all_blocks() -> None:
    """Fault: a younger one takes blocks from an older one that only waits for input; its own are lost while it waits."""
    bench = Bench(blocks=5, max_model_len=16)
    older = bench.add("a", 9, answer=2, is_open=True)
    younger = bench.add("b", 7, answer=6)
    assert bench.step() == {"a": 8, "b": 7}
    assert bench.step() == {"b": 1}
    assert bench.step() == {}
    assert not bench.scheduler.has_work()
    assert (len(older.blocks), len(younger.blocks)) == (3, 2)
    bench.check()


def test_those_that_are_not_ready_lose_first() -> None:
    """Fault: one that runs is stopped for room that one that waits for credit could have given."""
    bench = Bench(max_num_seqs=3)
    for name in "bcd":
        bench.add(name, 3, answer=9)
    bench.step()
    bench.scheduler.set_ready(SequenceKey("b", 0), False)
    bench.add("a", 3)
    plan = bench.plan()
    assert plan.preempted == (SequenceKey("b", 0),)
    assert bench.commit(plan) == {"c": 1, "d": 1, "a": 3}


def test_one_that_waits_for_input_loses_before_one_that_runs() -> None:
    """Fault: one that runs is stopped for room that one without input could have given."""
    bench = Bench(max_num_seqs=2)
    bench.add("b", 5, is_open=True)
    bench.add("c", 3, answer=9)
    assert bench.step() == {"b": 4, "c": 3}
    bench.add("a", 3)
    plan = bench.plan()
    assert plan.preempted == (SequenceKey("b", 0),)
    assert bench.commit(plan) == {"c": 1, "a": 3}


def test_one_that_may_not_hand_over_lends_its_slot_to_a_younger_one_and_has_it_back() -> None:
    """Fault: requests whose callers read slowly hold every slot while those that could run wait."""
    bench = Bench(max_num_seqs=1, enable_prefix_caching=False)
    slow = bench.add("a", 5, answer=9)
    bench.step()
    bench.add("b", 3, answer=9)
    bench.scheduler.set_ready(slow.key, False)
    assert bench.scheduler.has_work()
    assert bench.plan().preempted == (slow.key,)
    bench.commit(StepPlan())
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (1, 1)
    bench.scheduler.set_ready(slow.key, True)
    plan = bench.plan()
    assert plan.preempted == (SequenceKey("b", 0),)
    assert bench.commit(plan) == {"a": 6}
    bench.check()


def test_one_that_may_not_hand_over_lends_its_blocks_to_a_younger_one_and_has_them_back() -> None:
    """Fault: keys and values of requests whose callers read slowly keep everybody else from going on."""
    bench = Bench(blocks=4, max_model_len=16, enable_prefix_caching=False)
    slow = bench.add("a", 8, answer=2)
    bench.add("b", 8, answer=2)
    bench.step()
    bench.scheduler.set_ready(slow.key, False)
    plan = bench.plan()
    assert plan.preempted == (slow.key,)
    assert bench.commit(plan) == {"b": 1}
    bench.scheduler.set_ready(slow.key, True)
    assert bench.step() == {"a": 9}
    bench.check()


def test_the_younger_lose_before_an_older_one_that_may_not_hand_over() -> None:
    """Fault: an older request computes again what a younger one could have computed again."""
    bench = Bench(max_num_seqs=2)
    slow = bench.add("a", 3, answer=9)
    bench.add("c", 3, answer=9)
    bench.step()
    bench.scheduler.set_ready(slow.key, False)
    bench.add("b", 3)
    plan = bench.plan()
    assert plan.preempted == (SequenceKey("c", 0),)


def test_a_token_is_left_for_a_prompt_that_can_have_the_slot_of_one_that_waits() -> None:
    """Fault: decodes use up every step while a prompt could come in where a request waits for its caller."""
    bench = Bench(max_num_batched_tokens=2, max_num_seqs=3)
    for name in "abc":
        bench.add(name, 1, answer=9)
    bench.step()
    bench.step()
    bench.scheduler.set_ready(SequenceKey("a", 0), False)
    bench.add("d", 2)
    plan = bench.plan()
    assert plan.preempted == (SequenceKey("a", 0),)
    assert bench.commit(plan) == {"b": 1, "d": 1}


def test_what_is_not_ready_keeps_what_it_has() -> None:
    """Fault: a request without credit loses its blocks although nobody needs them."""
    bench = Bench()
    sequence = bench.add("a", 5)
    bench.step()
    bench.scheduler.set_ready(sequence.key, False)
    assert bench.step() == {}
    assert (sequence.computed, len(sequence.blocks)) == (5, 2)
    bench.scheduler.set_ready(sequence.key, True)
    assert bench.step() == {"a": 1}


def test_a_request_is_admitted_with_blocks_for_its_whole_prompt() -> None:
    """Fault: two long prompts share what is free, and neither can end."""
    bench = Bench(blocks=6, max_model_len=24, max_num_batched_tokens=4)
    bench.add("a", 14, answer=1)
    bench.add("b", 14, answer=1)
    trace = [bench.step() for _ in range(8)]
    assert trace == [{"a": 4}, {"a": 4}, {"a": 4}, {"a": 2}, {"b": 4}, {"b": 4}, {"b": 4}, {"b": 2}]


def test_nothing_is_taken_from_the_younger_if_it_would_not_be_enough() -> None:
    """Fault: younger ones are stopped, and the older cannot run all the same."""
    bench = Bench(blocks=8, max_model_len=32)
    bench.add("a", 20, answer=12)
    bench.add("c", 3, answer=9)
    bench.step()
    bench.step()
    bench.add("b", 16)
    plan = bench.plan()
    assert plan.preempted == ()
    assert bench.commit(plan) == {"a": 1, "c": 1}


def test_a_removed_sequence_gives_everything_back() -> None:
    """Fault: a cancelled request's blocks or slot are lost, whether it ran or waited."""
    bench = Bench(max_num_seqs=1)
    bench.add("a", 20)
    bench.add("b", 20)
    bench.step()
    for name in "ab":
        key = SequenceKey(name, 0)
        bench.scheduler.remove(key)
        bench.sequences.pop(key)
    bench.scheduler.remove(SequenceKey("z", 0))
    bench.scheduler.set_ready(SequenceKey("z", 0), False)
    bench.check()
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (0, 0)
    assert not bench.scheduler.has_work()


# ---- prefixes --------------------------------------------------------------------------------------------------------


def test_an_equal_prompt_is_computed_once_but_for_its_last_token() -> None:
    """Fault: no hit, or a hit that leaves nothing from which the first token could be sampled."""
    bench = Bench()
    bench.add("a", 8, first=0)
    bench.step()
    again = bench.add("b", 8, first=0)
    plan = bench.plan()
    assert bench.commit(plan) == {"a": 1, "b": 4}
    assert again.cached_tokens == 4
    bench.check()


def test_prefixes_are_not_shared_when_they_are_off_or_not_known() -> None:
    """Fault: a hit on content that tokens do not tell, or although sharing is off."""
    off = Bench(enable_prefix_caching=False)
    unknown = Bench()
    for bench, key in ((off, ""), (unknown, None)):
        bench.add("a", 8, first=0, content_key=key)
        bench.step()
        bench.add("b", 8, first=0, content_key=key)
        assert bench.step() == {"a": 1, "b": 8}


def test_captured_rows_are_computed_in_spite_of_a_hit_and_handed_on_once() -> None:
    """Fault: a prefix hit drops hidden states that an edge wants; a preempted request hands them on twice."""
    bench = Bench(max_num_seqs=1)
    bench.add("b", 8, first=0, answer=1)
    bench.step()
    sequence = bench.add("b", 8, first=0, capture=True)
    plan = bench.plan()
    assert [(row.start, row.captures) for row in plan.rows] == [(0, ((0, 8),))]
    bench.commit(plan)
    bench.add("a", 3, answer=1)
    assert bench.plan().preempted == (sequence.key,)
    bench.commit(StepPlan())
    bench.scheduler.remove(SequenceKey("a", 0))
    bench.sequences.pop(SequenceKey("a", 0))
    plan = bench.plan()
    assert [(row.start, row.end, row.captures) for row in plan.rows] == [(8, 9, ((8, 9),))]


class Held:
    """Rows of the blocks whose first positions are given, whatever their digests are."""

    def __init__(self, *starts: int) -> None:
        self.starts = starts

    def holds(self, digest: bytes, spans: tuple[Span, ...]) -> bool:
        return spans[0][0] // BLOCK * BLOCK in self.starts


@pytest.mark.parametrize(
    ("held", "outputs_at", "start", "recalled"),
    [
        ((), (), 12, []),
        ((), ((5, 7),), 4, []),
        ((4,), ((5, 7),), 12, [((5, 7),)]),
        ((4,), ((5, 7), (7, 9)), 8, [((5, 7), (7, 8))]),
        ((0, 4, 8), ((0, 12),), 12, [((0, 4),), ((4, 8),), ((8, 12),)]),
        ((0, 8), ((0, 12),), 4, [((0, 4),)]),
        ((), ((12, 14),), 12, []),
    ],
)
def test_a_hit_ends_before_rows_that_are_wanted_and_not_held(
    held: tuple[int, ...], outputs_at: tuple[Span, ...], start: int, recalled: list[tuple[Span, ...]]
) -> None:
    """Fault: rows of a shared block are not handed on, or a prompt with a picture is computed although all is there."""
    bench = Bench(held=Held(*held))
    bench.add("a", 14, first=0, answer=1)
    bench.step()
    bench.add("b", 14, first=0, capture=True, outputs_at=outputs_at)
    (row,) = bench.plan().rows
    assert (row.start, [block.wanted for block in row.recalled]) == (start, recalled)
    assert all(block.spans == block.wanted and block.skip == 0 for block in row.recalled)
    assert row.captures == bench.sequences[row.key].wanted(start, 14)


def test_recalled_rows_are_handed_on_once() -> None:
    """Fault: a request that lost its blocks hands its rows on again when it shares them the next time, or none of the block
    in which it had stopped."""
    bench = Bench(max_num_seqs=1, max_num_batched_tokens=6, held=Held(0, 4, 8))
    bench.add("x", 14, first=0, answer=1)
    for _ in range(3):
        bench.step()
    bench.scheduler.blocks.forget()
    sequence = bench.add("b", 14, first=0, capture=True, outputs_at=((0, 10),))
    (row,) = bench.plan().rows
    assert (row.captures, row.recalled) == (((0, 6),), ())
    bench.commit(StepPlan((row,)))
    bench.scheduler.set_ready(sequence.key, False)
    bench.add("a", 14, first=0, answer=1)
    assert bench.plan().preempted == (sequence.key,)
    for _ in range(3):
        bench.commit(bench.plan())
    bench.scheduler.set_ready(sequence.key, True)
    (row,) = bench.plan().rows
    assert (row.key.request_id, row.start) == ("b", 12)
    assert [(block.wanted, block.skip) for block in row.recalled] == [(((6, 8),), 2), (((8, 10),), 0)]
    bench.commit(StepPlan((row,)))
    assert sequence.captured_upto == 14


def test_equal_tokens_of_other_media_are_not_shared() -> None:
    """Fault: a question about one picture is answered from another."""
    bench = Bench()
    bench.add("a", 9, first=0, answer=1, identities=[0, 1, 2, 3, 900, 901, 6, 7, 8])
    bench.step()
    bench.add("b", 9, first=0, answer=1, identities=[0, 1, 2, 3, 900, 902, 6, 7, 8])
    assert [row.start for row in bench.plan().rows] == [4]


def test_choices_share_the_prompt_of_their_leader() -> None:
    """Fault: every choice computes the prompt; a shared block that is not full."""
    bench = Bench(enable_prefix_caching=False)
    leader = bench.add("a", 10, first=0)
    follower = bench.add("a", 10, first=0, choice=1, leader=leader)
    assert bench.step() == {"a": 10}
    assert bench.step() == {"a": 1, "a'": 2}
    assert follower.blocks[:2] == leader.blocks[:2]
    assert follower.blocks[2] != leader.blocks[2]
    bench.check()


def test_a_choice_goes_on_when_its_leader_has_left() -> None:
    """Fault: a follower waits for ever for a leader that ended at once or was removed before it began."""
    bench = Bench()
    leader = bench.add("a", 6, first=0, answer=1)
    bench.add("a", 6, first=0, choice=1, leader=leader)
    assert [bench.step() for _ in range(2)] == [{"a": 6}, {"a'": 2}]
    leader = bench.add("b", 6)
    bench.add("b", 6, choice=1, leader=leader)
    bench.scheduler.remove(leader.key)
    bench.sequences.pop(leader.key)
    assert bench.step() == {"a'": 1, "b'": 6}


# ---- open prompts ----------------------------------------------------------------------------------------------------


def test_an_open_prompt_is_computed_as_it_comes_and_samples_when_it_is_complete() -> None:
    """Fault: a token is sampled in the middle of a prompt, or nothing is left to sample from at its end."""
    bench = Bench()
    sequence = bench.add("a", 0, is_open=True)
    assert not bench.scheduler.has_work()
    bench.scheduler.append(sequence.key, [1, 2, 3])
    plan = bench.plan()
    assert [(len(row.tokens), row.samples) for row in plan.rows] == [(2, False)]
    bench.commit(plan)
    assert not bench.scheduler.has_work()
    bench.scheduler.close_prompt(sequence.key, 8)
    plan = bench.plan()
    assert [(len(row.tokens), row.samples) for row in plan.rows] == [(1, True)]
    assert sequence.prompt_len == 3


# ---- what can never be served ----------------------------------------------------------------------------------------


def test_lengths_that_can_never_fit_are_refused_by_their_numbers() -> None:
    """Fault: a request that waits for ever; a message that does not say what would be accepted."""
    scheduler = Bench().scheduler
    assert scheduler.max_len_of(60, 4) == 64
    assert scheduler.max_len_of(60, None) == 64
    with pytest.raises(InvalidRequestError, match=r"max_tokens: 5 after a prompt of 60 tokens makes 65.* at most 4"):
        scheduler.max_len_of(60, 5)
    with pytest.raises(InvalidRequestError, match=r"prompt: 64 tokens.* at most 63 tokens"):
        scheduler.max_len_of(64, None)


def test_the_cache_bounds_the_length_too() -> None:
    """Fault: a request that the whole cache cannot hold preempts everybody, for ever."""
    with pytest.raises(InvalidRequestError, match="makes 9; accepted: at most 4"):
        Bench(blocks=2).scheduler.max_len_of(4, 5)


# ---- everything at once ----------------------------------------------------------------------------------------------


def random_use(seed: int, requests: int, **limits: Any) -> tuple[Bench, list[int]]:
    """Requests come, are cancelled, lose and get credit; every step is checked. Gives the tokens of every step."""
    chance = random.Random(seed)
    bench = Bench(**limits)
    limit = bench.scheduler.max_len_of(0, None)
    steps: list[int] = []
    came = 0
    while came < requests or bench.sequences:
        if came < requests and len(bench.sequences) < 14 and chance.random() < 0.6:
            came += 1
            add_one(bench, chance, came, limit)
        if bench.sequences and chance.random() < 0.05:
            key = chance.choice(list(bench.sequences))
            bench.scheduler.remove(key)
            del bench.sequences[key]
        for key in list(bench.sequences):
            if came >= requests or chance.random() < 0.1:
                bench.scheduler.set_ready(key, came >= requests or chance.random() < 0.7)
        plan = bench.plan()
        expect_fair(bench, plan)
        steps.append(sum(len(row.tokens) for row in plan.rows))
        assert plan.rows or came < requests or not bench.sequences
        bench.commit(plan)
        bench.check()
    return bench, steps


def add_one(bench: Bench, chance: random.Random, number: int, limit: int) -> None:
    prompt = chance.randrange(1, limit - 1)
    order = (chance.randrange(2), number)
    answer = chance.randrange(1, limit - prompt + 1)
    tokens = [chance.randrange(2) for _ in range(prompt)] if chance.random() < 0.5 else list(range(prompt))
    leader: SequenceState | None = None
    for index in range(chance.choice([1, 1, 1, 3])):
        sequence = SequenceState(
            SequenceKey(f"r{number}", index), (*order, index), list(tokens), prompt + answer, leader=leader
        )
        leader = leader or sequence
        bench.sequences[sequence.key] = sequence
        bench.scheduler.add(sequence)


def expect_fair(bench: Bench, plan: StepPlan) -> None:
    """Nobody who could have gone on lost its place to a younger one; what is planned has blocks and is ready."""
    planned = [bench.sequences[row.key] for row in plan.rows]
    for key in plan.preempted:
        loser = bench.sequences[key]
        assert not loser.ready or any(sequence.order < loser.order for sequence in planned)
    for row, sequence in zip(plan.rows, planned, strict=True):
        assert sequence.ready
        assert len(sequence.blocks) * BLOCK >= row.end
        assert row.slot == sequence.slot != NO_SLOT


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    blocks=st.integers(2, 24),
    seqs=st.integers(1, 5),
    budget=st.integers(1, 20),
    sharing=st.booleans(),
)
def test_every_request_ends_and_no_block_is_lost(seed: int, blocks: int, seqs: int, budget: int, sharing: bool) -> None:
    """Fault: a leak, a lock-up, a slot held twice, an inversion of the order, a budget exceeded."""
    bench, steps = random_use(
        seed,
        25,
        blocks=blocks,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        enable_prefix_caching=sharing,
        max_model_len=40,
    )
    assert max(steps) <= budget
    assert bench.scheduler.blocks.num_free == bench.scheduler.blocks.capacity
    assert not bench.scheduler.has_work()


@pytest.mark.parametrize("chunked", [True, False])
def test_thousands_of_requests_leave_nothing_behind(chunked: bool) -> None:
    """Fault: a rare leak that a few requests do not show."""
    bench, _ = random_use(11, 2000, blocks=20, max_model_len=40, enable_chunked_prefill=chunked)
    assert bench.scheduler.blocks.num_free == bench.scheduler.blocks.capacity
    assert bench.scheduler.num_preemptions > 50


def test_an_uncut_prompt_is_never_cut_over_random_use() -> None:
    """Fault: with chunks off, some path still cuts a prompt."""
    bench = Bench(enable_chunked_prefill=False, max_num_batched_tokens=6, blocks=16, max_model_len=40)
    chance = random.Random(3)
    cut: list[Sequence[int]] = []
    for number in range(60):
        add_one(bench, chance, number, 40)
        plan = bench.plan()
        cut += [row.tokens for row in plan.rows if not row.samples]
        bench.commit(plan)
    assert cut == []
