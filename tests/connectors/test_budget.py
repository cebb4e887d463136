"""Bytes that payloads take together, and the one that may go beyond them."""

from __future__ import annotations

from omnistage.connectors.budget import BudgetState

EDGE, OTHER = (0, 1), (0, 2)


def test_a_budget_is_taken_and_given_back() -> None:
    """Fault: bytes that are counted twice, or never given back."""
    budget = BudgetState(100)
    assert budget.take(1, 60, None) and not budget.take(2, 41, None) and budget.take(3, 40, None)
    assert (budget.used_nbytes, len(budget)) == (100, 2)
    budget.give_back(1)
    budget.give_back(1)
    assert (budget.used_nbytes, len(budget)) == (40, 1)
    assert budget.take(4, 60, None)


def test_the_oldest_of_each_edge_goes_beyond_by_one() -> None:
    """Fault: the oldest waits for younger ones, or takes as much as it likes."""
    budget = BudgetState(100)
    assert budget.take(1, 100, EDGE)
    assert budget.take(2, 100, EDGE) and not budget.take(3, 1, EDGE)
    assert budget.take(4, 100, OTHER)
    budget.give_back(1)
    assert not budget.take(5, 1, EDGE)
    budget.give_back(2)
    assert budget.take(6, 100, EDGE)


def test_the_number_is_bounded_too() -> None:
    """Fault: a thousand small payloads take all descriptors that a process may have."""
    budget = BudgetState(100, max_count=2)
    assert budget.take(1, 1, None) and budget.take(2, 1, None) and not budget.take(3, 1, None)
    budget.clear()
    assert budget.take(4, 1, None) and budget.used_nbytes == 1
