"""What the scheduler may do with a sequence."""

from __future__ import annotations

from omnistage.stages.ar.plan import SequenceKey
from omnistage.stages.ar.sequence import SequenceState


def test_an_open_prompt_keeps_its_last_token_back() -> None:
    """Fault: nothing is left to sample from when the prompt turns out to be complete."""
    sequence = SequenceState(SequenceKey("r", 0), (0, 0, 0), [5, 6, 7], 9, is_open=True)
    assert sequence.remaining == 2
    sequence.is_open = False
    assert sequence.remaining == 3


def test_a_choice_waits_for_its_leader_until_it_has_begun_itself() -> None:
    """Fault: a choice that was preempted waits for a leader that computes its own tokens again."""
    leader = SequenceState(SequenceKey("r", 0), (0, 0, 0), [5, 6], 9)
    follower = SequenceState(SequenceKey("r", 1), (0, 0, 1), [5, 6], 9, leader=leader)
    assert follower.waits_for_leader
    follower.tokens.append(7)
    assert not follower.waits_for_leader
    assert (follower.prompt_len, follower.output_len) == (2, 1)
