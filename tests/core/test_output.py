"""The public output."""

from __future__ import annotations

from omnistage.core.output import CompletionOutput, OmniRequestOutput


def test_the_first_choice_is_the_text() -> None:
    """Fault: an output without text raises where "" is expected."""
    empty = OmniRequestOutput("r", 0, "audio", finished=True)
    assert (empty.text, empty.token_ids) == ("", ())
    two = OmniRequestOutput(
        "r", 0, "text", True, outputs=(CompletionOutput(0, "a", (1,)), CompletionOutput(1, "b", (2,)))
    )
    assert (two.text, two.token_ids) == ("a", (1,))
