"""The repetition penalty against its definition, and against the compiled one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.kernels.native import KernelOps
from omnistage.modeling.repetition import SeenRows, penalise
from tests.tiny.fixtures import kernels as kernels

INF = float("inf")


@pytest.mark.parametrize("computed_by", ["torch", "kernels"])
def test_what_was_seen_becomes_less_likely(computed_by: str, request: pytest.FixtureRequest) -> None:
    """Fault: another row's penalty or tokens, a sign wrong, a neighbour changed, a row without a penalty changed."""
    ops = TorchOps() if computed_by == "torch" else request.getfixturevalue("kernels")
    logits = torch.tensor([[2.0, -1.0, 0.5, -INF], [2.0, -1.0, 0.5, 4.0], [2.0, -1.0, 0.0, INF]])
    ops.penalise(logits, SeenRows.of([2.0, 1.0, 4.0], [[1, 0, 3], [0, 1], [3, 1, 2]]))
    assert logits.tolist() == [[1.0, -2.0, 0.5, -INF], [2.0, -1.0, 0.5, 4.0], [2.0, -4.0, 0.0, INF]]


@given(
    seen=st.lists(st.lists(st.integers(0, 299), unique=True, max_size=40), min_size=1, max_size=5),
    penalties=st.lists(st.sampled_from([1.0, 1.05, 1.3, 0.7]), min_size=5, max_size=5),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_compiled_form_changes_the_same_bits(
    kernels: KernelOps, seen: list[list[int]], penalties: list[float], seed: int
) -> None:
    """Fault: a quotient that is rounded otherwise: a greedy answer differs with and without kernels."""
    logits = 3 * torch.randn(len(seen), 300, generator=torch.Generator().manual_seed(seed))
    rows = SeenRows.of(penalties[: len(seen)], seen)
    ours, plain = logits.clone(), logits.clone()
    kernels.penalise(ours, rows)
    penalise(plain, rows)
    assert torch.equal(ours, plain)


def test_no_memory_outside_of_the_vocabulary_is_written(kernels: KernelOps) -> None:
    """Fault: a token that a model does not have changes another row, or what lies behind the logits."""
    logits = torch.ones(3, 8)
    kernels.penalise(logits[1:2], SeenRows.of([2.0], [[8, -1, 2**40, 7]]))
    assert logits.tolist() == [[1.0] * 8, [*[1.0] * 7, 0.5], [1.0] * 8]
