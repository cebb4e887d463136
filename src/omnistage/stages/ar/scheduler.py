"""Which tokens of which sequences are computed next. No torch, no text, no sampling: tokens in, plans out.

    schedule() -> StepPlan          commit(row), append(key, token)          remove(key)

Every decision follows the one total order of sequences (request order, then choice), smaller first:
* running sequences that need one token go first, so a long prompt never holds up a decode; with a budget of more than
  one token, one of them is left for prompts, so that decodes never hold up a prompt either;
* then prompts, in chunks that fit the token budget (or whole, where chunks are off: the first whole prompt of a step
  may exceed the budget, so that none waits for ever);
* then the waiting, until one has no place. A sequence takes blocks for all its known tokens when it is admitted.
A sequence without room takes blocks and slot from younger ones: first from those that cannot run (no credit, no input), then
from the youngest. From older ones it takes only what they cannot use, because they may not hand over: they wait for a caller or
a target, and take it back when they may go on. Who loses keeps its tokens and computes them again. As long as nobody needs it,
what cannot run keeps what it has.
"""

from __future__ import annotations

import bisect
import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from omnistage.core.errors import InvalidRequestError
from omnistage.stages.ar.block_manager import BlockManager, chain_digest
from omnistage.stages.ar.plan import HeldBlock, PlanRow, SequenceKey, Span, StepPlan
from omnistage.stages.ar.sequence import NO_SLOT, SequenceState


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_num_batched_tokens` per step, `max_num_seqs` running, `max_model_len` tokens of one sequence."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True


class HeldOutputs(Protocol):
    """Captured rows of full blocks, under their digests."""

    def holds(self, digest: bytes, spans: tuple[Span, ...]) -> bool:
        """True if the rows of exactly these positions are there."""


def _order(sequence: SequenceState) -> tuple[int, int, int]:
    return sequence.order


class Scheduler:
    """See the module. `blocks` is this scheduler's alone. Blocks with rows that are to be handed on are shared if `outputs` holds
    these rows."""

    def __init__(self, limits: Limits, blocks: BlockManager, outputs: HeldOutputs | None = None) -> None:
        self.limits = limits
        self.blocks = blocks
        self._outputs = outputs
        self.num_preemptions = 0
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0
        self._sequences: dict[SequenceKey, SequenceState] = {}
        self._waiting: list[SequenceState] = []
        self._running: list[SequenceState] = []
        self._slots = list(range(limits.max_num_seqs))
        self._budget = 0
        self._drafted: dict[SequenceKey, int] = {}
        self._preempted: list[SequenceKey] = []
        self._is_stalled = False  # the last plan was empty and nothing has changed since

    # ---- requests --------------------------------------------------------------------------------------------------

    def max_len_of(self, prompt_len: int, max_tokens: int | None) -> int:
        """Tokens at which a sequence ends. Raises InvalidRequestError for what can never be served here."""
        room = min(self.limits.max_model_len, self.blocks.capacity * self.blocks.block_size)
        if prompt_len >= room:
            raise InvalidRequestError(
                f"prompt: {prompt_len} tokens leave no room for an answer; accepted: at most {room - 1} tokens"
                f" (max_model_len {self.limits.max_model_len})",
                field="prompt",
            )
        if max_tokens is None:
            return room
        if prompt_len + max_tokens > room:
            raise InvalidRequestError(
                f"max_tokens: {max_tokens} after a prompt of {prompt_len} tokens makes {prompt_len + max_tokens};"
                f" accepted: at most {room - prompt_len} (max_model_len {self.limits.max_model_len})",
                field="max_tokens",
            )
        return prompt_len + max_tokens

    def add(self, sequence: SequenceState) -> None:
        """Takes a sequence over; its length must have been checked by `max_len_of`."""
        assert sequence.key not in self._sequences
        self._is_stalled = False
        self._sequences[sequence.key] = sequence
        bisect.insort(self._waiting, sequence, key=_order)

    def remove(self, key: SequenceKey) -> None:
        """Forgets a sequence: its blocks and its slot are free afterwards. Unknown keys are fine."""
        sequence = self._sequences.pop(key, None)
        if sequence is None:
            return
        self._is_stalled = False
        sequence.removed = True
        if sequence.slot == NO_SLOT:
            self._waiting.remove(sequence)
        else:
            self._leave(sequence)

    def set_ready(self, key: SequenceKey, ready: bool) -> None:
        if key in self._sequences:
            self._sequences[key].ready = ready
            self._is_stalled = False

    # ---- steps -----------------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """True if a step could compute something. After a step that found no room for anybody it waits for a change."""
        return not self._is_stalled and any(sequence.runnable for sequence in self._sequences.values())

    def schedule(self) -> StepPlan:
        """The next step. What it plans must be committed, or its sequence removed, before the next call."""
        self._budget = self.limits.max_num_batched_tokens
        self._drafted, self._preempted = {}, []
        runnable = [(sequence, count) for sequence in self._running if (count := sequence.runnable)]
        self._draft_decodes(runnable)
        self._draft_prompts(runnable)
        if not self._preempted:
            self._admit()
        rows = tuple(self._row(self._sequences[key], count) for key, count in self._drafted.items())
        self._is_stalled = not rows and not self._preempted
        return StepPlan(rows, tuple(self._preempted))

    def commit(self, row: PlanRow) -> None:
        """The row is computed: its keys and values are in the cache."""
        sequence = self._sequences[row.key]
        sequence.computed = row.end
        sequence.captured_upto = max(sequence.captured_upto, row.end)
        if self.shares(sequence):
            self._publish(sequence)

    def append(self, key: SequenceKey, tokens: Sequence[int]) -> None:
        """More tokens of a sequence: what was sampled, or more of an open prompt."""
        sequence = self._sequences[key]
        self._is_stalled = False
        sequence.tokens.extend(tokens)
        if sequence.is_open:
            sequence.prompt_len = len(sequence.tokens)

    def supply(self, key: SequenceKey, sides: Sequence[int], *, all_there: bool) -> None:
        """Sides that a sequence of frames may wait for; `all_there`: no more come. One that has ended is fed no more."""
        sequence = self._sequences.get(key)
        self._is_stalled = False
        if sequence is not None and sequence.frames is not None:
            sequence.frames.supply(sides, all_there=all_there)

    def close_prompt(self, key: SequenceKey, max_len: int) -> None:
        """An open prompt is complete: sampling may begin."""
        sequence = self._sequences[key]
        self._is_stalled = False
        sequence.is_open, sequence.max_len = False, max_len

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    # ---- drafting a step -------------------------------------------------------------------------------------------

    def _draft_decodes(self, runnable: Sequence[tuple[SequenceState, int]]) -> None:
        kept_back = 1 if self._budget > 1 and self._prompt_waits(runnable) else 0
        for sequence, remaining in runnable:
            if self._budget <= kept_back:
                break
            if remaining == 1 and sequence.slot != NO_SLOT and self._extend(sequence, 1):
                self._draft(sequence, 1)

    def _prompt_waits(self, runnable: Sequence[tuple[SequenceState, int]]) -> bool:
        """True if some prompt could use a token of this step."""
        if any(remaining > 1 for _, remaining in runnable):
            return True
        first = next((sequence for sequence in self._waiting if sequence.runnable), None)
        return first is not None and (bool(self._slots) or next(self._victims(first), None) is not None)

    def _draft_prompts(self, runnable: Sequence[tuple[SequenceState, int]]) -> None:
        for sequence, remaining in runnable:
            if sequence.slot == NO_SLOT or remaining <= 1:
                continue
            count = self._chunk(remaining)
            if count == 0:
                break
            if self._extend(sequence, count):
                self._draft(sequence, count)

    def _admit(self) -> None:
        for sequence in list(self._waiting):
            if self._preempted:
                break  # one taker a step: whoever lost its place is older than some of those that still wait
            if not sequence.runnable:
                continue
            if self._chunk(sequence.remaining) == 0 or not self._start(sequence):
                break
            self._draft(sequence, self._chunk(sequence.remaining))

    def _chunk(self, remaining: int) -> int:
        """How many of a prompt's remaining tokens this step computes."""
        if self.limits.enable_chunked_prefill:
            return min(remaining, self._budget)
        is_first = all(count == 1 for count in self._drafted.values())
        return remaining if remaining <= self._budget or is_first else 0

    def _draft(self, sequence: SequenceState, count: int) -> None:
        self._drafted[sequence.key] = count
        self._budget -= count

    def _row(self, sequence: SequenceState, count: int) -> PlanRow:
        start, end = sequence.computed, sequence.computed + count
        first_block = sequence.announced_blocks
        sequence.announced_blocks = len(sequence.blocks)
        captures, recalled = self._handed_on(sequence, start, end) if sequence.capture else ((), ())
        frames, prompt_len = sequence.frames, sequence.prompt_len
        return PlanRow(
            key=sequence.key,
            slot=sequence.slot,
            start=start,
            tokens=tuple(sequence.tokens[start:end]),
            first_block=first_block,
            blocks=tuple(sequence.blocks[first_block:]),
            samples=not sequence.is_open and end == len(sequence.tokens),
            captures=captures,
            recalled=recalled,
            frames=() if frames is None else frames.fed(start - prompt_len, end - prompt_len),
        )

    # ---- slots and blocks ------------------------------------------------------------------------------------------

    def _extend(self, sequence: SequenceState, count: int) -> bool:
        """Blocks for `count` more tokens, if need be from younger sequences."""
        if sequence.computed + count <= len(sequence.blocks) * self.blocks.block_size:
            return True
        missing = self.blocks.blocks_for(sequence.computed + count) - len(sequence.blocks)
        if not self._find_room(sequence, missing):
            return False
        sequence.blocks += self.blocks.allocate(missing) or []
        return True

    def _find_room(self, sequence: SequenceState, count: int, *, needs_slot: bool = False) -> bool:
        """Makes `count` blocks (and a slot) free, or takes nothing from anybody."""
        needs_slot = needs_slot and not self._slots
        if self.blocks.num_free >= count and not needs_slot:
            return True
        victims = list(self._victims(sequence))
        if self.blocks.num_free + self._held_alone(victims) < count or (needs_slot and not victims):
            return False
        for victim in victims:
            if self.blocks.num_free >= count and (self._slots or not needs_slot):
                break
            self._preempt(victim)
        return True

    def _held_alone(self, victims: list[SequenceState]) -> int:
        """Blocks that would become free if all of them lost theirs: what others share stays."""
        held = Counter(block for victim in victims for block in victim.blocks)
        return sum(self.blocks.references(block) == count for block, count in held.items())

    def _victims(self, sequence: SequenceState) -> Iterator[SequenceState]:
        """Running sequences that give way to this one, the youngest of each kind first: the younger that cannot run, the younger
        that can, the older that may not hand over."""
        youngest_first = list(reversed(self._running))
        younger = [other for other in youngest_first if other.order > sequence.order]
        yield from (other for other in younger if not other.runnable)
        yield from (other for other in younger if other.runnable)
        yield from (other for other in youngest_first if other.order < sequence.order and not other.ready)

    def _start(self, sequence: SequenceState) -> bool:
        """Moves a waiting sequence to the running, with blocks for all its tokens; those it can share are not computed."""
        shared = self._shared_blocks(sequence)
        self.blocks.acquire(shared)
        missing = self.blocks.blocks_for(len(sequence.tokens)) - len(shared)
        if not self._find_room(sequence, missing, needs_slot=True):
            self.blocks.release(shared)
            return False
        sequence.blocks = shared + (self.blocks.allocate(missing) or [])
        sequence.computed = len(shared) * self.blocks.block_size
        sequence.published_blocks = len(shared)
        sequence.announced_blocks = 0
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            self.num_prefix_queries += len(sequence.tokens)
            self.num_prefix_hits += sequence.computed
        sequence.slot = heapq.heappop(self._slots)
        self._waiting.remove(sequence)
        bisect.insort(self._running, sequence, key=_order)
        return True

    def _preempt(self, sequence: SequenceState) -> None:
        self.num_preemptions += 1
        self._budget += self._drafted.pop(sequence.key, 0)
        self._leave(sequence)
        sequence.computed = 0
        bisect.insort(self._waiting, sequence, key=_order)
        self._preempted.append(sequence.key)

    def _leave(self, sequence: SequenceState) -> None:
        self._running.remove(sequence)
        self.blocks.release(sequence.blocks)
        heapq.heappush(self._slots, sequence.slot)
        sequence.blocks, sequence.slot = [], NO_SLOT

    # ---- sharing ---------------------------------------------------------------------------------------------------

    def shares(self, sequence: SequenceState) -> bool:
        """Whether its full blocks can be found by others."""
        return self.limits.enable_prefix_caching and sequence.content_key is not None

    def _shared_blocks(self, sequence: SequenceState) -> list[int]:
        """Full blocks that hold the first tokens already. At least one token, and every output that is wanted and not
        held, is left to compute."""
        limit = len(sequence.tokens) - 1
        if sequence.capture and sequence.outputs_at is None:
            limit = min(limit, sequence.captured_upto)
        count = limit // self.blocks.block_size
        leader = sequence.leader
        if leader is not None and leader.prompt_is_computed and leader.blocks:
            of_prompt = min(count, leader.prompt_len // self.blocks.block_size)
            return leader.blocks[:of_prompt]
        if not self.shares(sequence):
            return []
        found = self.blocks.match(self._digests(sequence, count))
        return found[: self._recallable(sequence, len(found))] if sequence.capture else found

    def _recallable(self, sequence: SequenceState, count: int) -> int:
        """How many of the first `count` blocks hold all that is to be handed on of them."""
        size = self.blocks.block_size
        for index in range(sequence.captured_upto // size, count):
            spans = sequence.wanted(index * size, (index + 1) * size)
            if not spans or spans[-1][1] <= sequence.captured_upto:
                continue
            if self._outputs is None or not self._outputs.holds(sequence.digests[index], spans):
                return index
        return count

    def _handed_on(
        self, sequence: SequenceState, start: int, end: int
    ) -> tuple[tuple[Span, ...], tuple[HeldBlock, ...]]:
        """What is wanted of the tokens [start, end), and of those before that are shared."""
        upto = sequence.captured_upto
        return sequence.wanted(max(start, upto), end), self._recalled(sequence) if upto < start else ()

    def _recalled(self, sequence: SequenceState) -> tuple[HeldBlock, ...]:
        """What is handed on of blocks that it shares, and was not yet."""
        size, upto = self.blocks.block_size, sequence.captured_upto
        found = []
        for index in range(upto // size, sequence.computed // size):
            spans = sequence.wanted(index * size, (index + 1) * size)
            if spans and spans[-1][1] > upto:
                skip = sum(min(end, upto) - start for start, end in spans if start < upto)
                wanted = sequence.wanted(max(upto, index * size), (index + 1) * size)
                found.append(HeldBlock(sequence.digests[index], spans, wanted, skip))
        return tuple(found)

    def _publish(self, sequence: SequenceState) -> None:
        full = sequence.computed // self.blocks.block_size
        if full <= sequence.published_blocks:
            return
        digests = self._digests(sequence, full)
        for index in range(sequence.published_blocks, full):
            self.blocks.publish(sequence.blocks[index], digests[index])
        sequence.published_blocks = full

    def _digests(self, sequence: SequenceState, count: int) -> list[bytes]:
        """Digests of the first `count` full blocks; each is computed once."""
        size = self.blocks.block_size
        for index in range(len(sequence.digests), count):
            parent = sequence.digests[-1] if sequence.digests else b""
            tokens = sequence.identified(index * size, (index + 1) * size)
            sequence.digests.append(chain_digest(parent, tokens, sequence.content_key or ""))
        return sequence.digests[:count]
