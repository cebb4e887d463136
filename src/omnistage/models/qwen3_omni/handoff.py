"""What a prompt leaves for the talker: the keys of the handoff that the processor fills and the talker's bridge reads.

The talker speaks to the user turns only. A turn is everything from `<|im_start|>`, `user` up to the next `<|im_start|>`; system
turns, earlier answers and the turn that is to be written are left out. For the n tokens of all user turns, in order:

    USER_IDS        int32 [n]         token ids, those of media rows included
    MEDIA_ROWS      int32 [m]         which of the n are rows of media, ascending; every other row is a text token's
    POSITIONS       int32 [3, n + 9]  rotary positions (temporal, height, width) of the talker's whole prompt: the user turns and
                                      the ASSISTANT_ROWS rows that open the answer
    NEXT_POSITION   int               rotary position of the talker's first generated row

The thinker's captured rows are sent at exactly those m places and in that order (`outputs_at`), so captured row i, counted over the
whole request, belongs to row MEDIA_ROWS[i] of the user turns. Knows no tensors but numpy's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

USER_IDS = "user_ids"
MEDIA_ROWS = "media_rows"
POSITIONS = "talker_positions"
NEXT_POSITION = "talker_next_position"

ASSISTANT_ROWS = 9
"""<|im_start|>, assistant, a line break, four rows of padding, the begin of speech, and the first token of the answer."""

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TalkerPrompt:
    """See the module. Without a user turn `user_ids` is empty, and nothing can be said."""

    user_ids: Ints
    media_rows: Ints
    positions: Ints
    next_position: int

    def to_handoff(self) -> dict[str, Any]:
        return {
            USER_IDS: self.user_ids,
            MEDIA_ROWS: self.media_rows,
            POSITIONS: self.positions,
            NEXT_POSITION: self.next_position,
        }

    @classmethod
    def of(cls, handoff: Mapping[str, Any]) -> TalkerPrompt:
        """From what `to_handoff` made; KeyError where a key is missing."""
        return cls(handoff[USER_IDS], handoff[MEDIA_ROWS], handoff[POSITIONS], int(handoff[NEXT_POSITION]))
