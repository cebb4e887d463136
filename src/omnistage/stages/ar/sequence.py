"""One choice of one request as the scheduler sees it: its tokens, how far they are computed, the blocks it holds.

Knows no tensors, no text and no sampling parameters. `tokens` are the prompt, then what was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from omnistage.stages.ar.frames import FrameState
from omnistage.stages.ar.plan import SequenceKey, Span

NO_SLOT = -1


@dataclass(slots=True, eq=False)
class SequenceState:
    """`order` is the request's place in the one total order, then the choice. `max_len` bounds prompt and output.

    `content_key` None: its blocks are never shared (its tokens do not tell what was computed from). `identities` stand for the
    prompt's tokens where these alone do not tell it, or are empty. `capture`: hidden states are handed on, those of the positions
    `outputs_at` or (None) of all, so none of them may be skipped; `captured_upto` is the first position not handed on yet.
    `is_open`: more of the prompt may come, nothing is sampled yet. `leader`: the choice whose prompt blocks this one takes
    over once they are computed. `frames`: what a framed model is fed in place of the tokens behind the prompt.
    """

    key: SequenceKey
    order: tuple[int, int, int]
    tokens: list[int]
    max_len: int
    content_key: str | None = ""
    identities: Sequence[int] = ()
    capture: bool = False
    outputs_at: tuple[Span, ...] | None = None
    is_open: bool = False
    leader: SequenceState | None = None
    frames: FrameState | None = None
    prompt_len: int = 0
    ready: bool = True
    computed: int = 0
    captured_upto: int = 0
    cached_tokens: int | None = None
    blocks: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    slot: int = NO_SLOT
    removed: bool = False
    announced_blocks: int = 0
    published_blocks: int = 0

    def __post_init__(self) -> None:
        self.prompt_len = len(self.tokens)

    @property
    def remaining(self) -> int:
        """Tokens that can be computed. Of an open prompt the last one is kept back: it has to be the end of a step, so
        that something can be sampled, if no more come."""
        left = len(self.tokens) - self.computed - self.is_open
        if self.frames is not None:
            left = min(left, self.prompt_len + self.frames.num_ready - self.computed)
        return left if left > 0 else 0  # max() costs more than all of this, and it is asked for every row of every step

    @property
    def runnable(self) -> int:
        """Tokens that may be computed now: none while it cannot hand over, or its leader has the prompt to compute."""
        return 0 if not self.ready or self.waits_for_leader else self.remaining

    @property
    def output_len(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def prompt_is_computed(self) -> bool:
        return not self.is_open and self.computed >= self.prompt_len

    @property
    def waits_for_leader(self) -> bool:
        """A choice lets its leader compute the prompt first, unless it has started before (it was preempted since)."""
        leader = self.leader
        return leader is not None and self.output_len == 0 and not (leader.prompt_is_computed or leader.removed)

    def identified(self, start: int, end: int) -> list[int]:
        """What tells the tokens [start, end) from others, all of which are there."""
        told = list(self.identities[start:end])
        return told + self.tokens[start + len(told) : end]

    def wanted(self, start: int, end: int) -> tuple[Span, ...]:
        """The positions in [start, end) whose hidden states are handed on."""
        spans = self.outputs_at
        if spans is None:
            return ((start, end),) if self.capture and start < end else ()
        if not self.capture or not spans or spans[-1][1] <= start:
            return ()
        return tuple((max(start, first), min(end, last)) for first, last in spans if first < end and last > start)
