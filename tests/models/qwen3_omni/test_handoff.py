"""What travels to the talker is read as it was written."""

from __future__ import annotations

import numpy as np

from omnistage.models.qwen3_omni.handoff import ASSISTANT_ROWS, TalkerPrompt


def test_a_prompt_comes_back_as_it_went() -> None:
    """Fault: two ends of one hand-off that name its parts differently."""
    ids = np.arange(5, dtype=np.int32)
    positions = np.tile(np.arange(5 + ASSISTANT_ROWS, dtype=np.int32), (3, 1))
    sent = TalkerPrompt(ids, np.array([1, 2], np.int32), positions, 5 + ASSISTANT_ROWS)
    got = TalkerPrompt.of(sent.to_handoff())
    assert got.next_position == sent.next_position
    assert np.array_equal(got.user_ids, ids)
    assert got.media_rows.tolist() == [1, 2]
    assert np.array_equal(got.positions, positions)
