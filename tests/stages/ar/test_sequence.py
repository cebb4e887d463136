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


def test_wanted_positions_are_cut_to_what_is_asked() -> None:
    """Fault: rows beyond a span or of the answer are handed on; nothing is wanted and all is captured."""
    plain = SequenceState(SequenceKey("a", 0), (0, 0, 0), [1] * 9, 20, capture=True)
    assert plain.wanted(2, 12) == ((2, 12),)
    assert plain.wanted(2, 2) == ()
    plain.outputs_at = ((1, 3), (6, 9))
    assert plain.wanted(0, 20) == ((1, 3), (6, 9))
    assert plain.wanted(2, 7) == ((2, 3), (6, 7))
    assert (plain.wanted(3, 6), plain.wanted(9, 10)) == ((), ())
    plain.outputs_at = ()
    assert plain.wanted(0, 20) == ()
    plain.outputs_at, plain.capture = None, False
    assert plain.wanted(0, 20) == ()


def test_identities_stand_for_the_prompt_only() -> None:
    """Fault: generated tokens are told by what stands behind the last identity."""
    one = SequenceState(SequenceKey("a", 0), (0, 0, 0), [1, 2, 3], 20, identities=[7, 8, 9])
    one.tokens += [4, 5]
    assert [one.identified(start, start + 2) for start in range(4)] == [[7, 8], [8, 9], [9, 4], [4, 5]]
