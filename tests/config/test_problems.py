"""Problems are gathered, and raised together."""

import pytest

from omnistage.config.problems import ManyConfigError, ProblemsState, problems_of
from omnistage.core.errors import ConfigError, ErrorInfo


def test_nothing_wrong_raises_nothing() -> None:
    """Fault: an empty error."""
    problems = ProblemsState()
    problems.raise_if_any()
    with pytest.raises(ConfigError, match="one"):
        _with("one").raise_if_any()


def test_one_problem_is_raised_as_it_is() -> None:
    """Fault: the field lost in a wrapper."""
    with pytest.raises(ConfigError) as caught:
        _with("one", "one").raise_if_any()
    assert (type(caught.value), problems_of(caught.value)) == (ConfigError, ("one",))


def test_several_problems_come_in_one_line_and_one_by_one() -> None:
    """Fault: only the first problem shown; a subclass that does not survive its journey between processes."""
    with pytest.raises(ManyConfigError) as caught:
        _with("one", "two").raise_if_any()
    assert caught.value.message == "2 errors: one; two"
    assert problems_of(caught.value) == ("one", "two")
    assert isinstance(ErrorInfo.of(caught.value).to_exception(), ConfigError)


def _with(*lines: str) -> ProblemsState:
    problems = ProblemsState()
    for line in lines:
        problems.add(ConfigError(line))
    return problems
