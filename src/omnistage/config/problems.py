"""Gathers what is wrong with a configuration, so that one run shows all of it. Knows nothing of what is checked."""

from __future__ import annotations

from collections.abc import Sequence

from omnistage.core.errors import ConfigError


class ManyConfigError(ConfigError):
    """Several errors of one configuration; `problems` holds one line each, the message all of them in one line."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(f"{len(problems)} errors: {'; '.join(problems)}")
        self.problems = tuple(problems)


class ProblemsState:
    """Problems in the order in which they were found; the same line counts once."""

    def __init__(self) -> None:
        self._found: dict[str, ConfigError] = {}

    def add(self, error: ConfigError) -> None:
        self._found.setdefault(error.message, error)

    def raise_if_any(self) -> None:
        """One problem is raised as it is, several as `ManyConfigError`."""
        match list(self._found.values()):
            case []:
                return
            case [error]:
                raise error
            case errors:
                raise ManyConfigError([error.message for error in errors])


def problems_of(error: ConfigError) -> tuple[str, ...]:
    """The lines of an error, one per problem."""
    match error:
        case ManyConfigError(problems=problems):
            return tuple(problems)
        case _:
            return (error.message,)
