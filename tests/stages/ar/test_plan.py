"""Plans as values."""

from __future__ import annotations

from omnistage.stages.ar.plan import PlanRow, SequenceKey, StepPlan


def test_a_plan_can_be_taken_apart() -> None:
    """Fault: rows lost when a failed step is run again row by row."""
    rows = tuple(PlanRow(SequenceKey(name, 0), 0, 4, (1, 2), 0, (), samples=True) for name in "ab")
    assert [plan.rows for plan in StepPlan(rows).alone()] == [(rows[0],), (rows[1],)]
    assert rows[0].end == 6
