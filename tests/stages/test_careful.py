"""Calls on a batch that fail for one of its items."""

from __future__ import annotations

from collections.abc import Sequence

from omnistage.stages.careful import CarefulCalls


def test_a_call_that_fails_is_made_once_for_each_alone() -> None:
    """Fault: one item fails those beside it, or is tried for ever."""
    asked: list[list[int]] = []

    def call(batch: Sequence[int]) -> list[float]:
        asked.append(list(batch))
        return [1 / item for item in batch]

    calls = CarefulCalls("painter")
    made = calls.made("dividing", call, [1, 0, 2])
    assert [made[0], str(made[1]), made[2]] == [1.0, "division by zero", 0.5]
    assert asked == [[1, 0, 2], [1], [0], [2]]
    assert str(calls.made("dividing", call, [0])[0]) == "division by zero"
    assert (asked[4:], calls.num_reruns) == ([[0]], 1)


def test_too_few_results_belong_to_nobody() -> None:
    """Fault: a call that made one result too few gives everybody behind the gap another one's."""
    calls = CarefulCalls("painter")
    made = calls.made("halving", lambda batch: [item / 2 for item in batch if item], [0, 2])
    assert [str(made[0]), made[1]] == ["halving: 0 results were made of 1", 1.0]
