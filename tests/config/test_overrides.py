"""Overrides of a call: names of keys, for all stages or one, by id or alias."""

from typing import Any

import pytest

from omnistage.config.overrides import override_layer
from omnistage.config.problems import ProblemsState, problems_of
from omnistage.core.errors import ConfigError
from tests.config.samples import PIPELINE


def layer(overrides: dict[str, Any]) -> dict[str, Any]:
    problems = ProblemsState()
    made, _ = override_layer(overrides, PIPELINE, problems)
    problems.raise_if_any()
    assert {given.source for given in made.values()} <= {"cli", "cli edges[0]"}
    return {path: given.value for path, given in made.items()}


def test_names_become_paths() -> None:
    """Fault: an alias that is not looked up, a mapping that is not merged entry by entry, None taken for a value."""
    made = layer(
        {
            "inline": False,
            "threads": 2,
            "stage_0_threads": 3,
            "stage_voice_threads": 4,
            "stage_0_env": {"A": ""},
            "edges": [{"source": 0, "target": 1, "window": 9}],
            "connectors": {"x": {"kind": "inproc"}},
            "dtype": None,
            "stage_0_dtype": None,
        }
    )
    assert made == {
        "inline": False,
        "threads": 2,
        "stages.0.threads": 3,
        "stages.1.threads": 4,
        "stages.0.env.A": "",
        "edges.0->1.window": 9,
        "connectors.x": "inproc",
    }


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ({"thread": 1}, "thread: unknown key; did you mean 'threads'?"),
        ({"stage_0_thread": 1}, "stage_0_thread: unknown key; did you mean 'threads'?"),
        ({"stage_0_inline": True}, "stage_0_inline: this key is for the whole pipeline, not for one stage"),
        ({"stage_vioce_threads": 1}, "stage_vioce_threads: there is no stage 'vioce'; did you mean 'voice'?"),
        ({"process": "a"}, "process: this key is for one stage: stage_<id>_process"),
        ({"threads": "2"}, "threads: '2' is not accepted; accepted: an integer in [1, 1024]"),
        ({"edges": 3}, "edges: 3 is not accepted; accepted: a list of mappings"),
    ],
)
def test_a_wrong_override_is_named_as_the_caller_wrote_it(overrides: dict[str, Any], error: str) -> None:
    """Fault: a typo in a call that changes nothing and says nothing."""
    with pytest.raises(ConfigError) as caught:
        layer(overrides)
    assert problems_of(caught.value) == (error,)


def test_flags_of_other_engines_are_gathered() -> None:
    """Fault: a habitual flag refused, or taken in silence."""
    made, ignored = override_layer({"trust_remote_code": True, "threads": 1}, PIPELINE, ProblemsState())
    assert (list(made), ignored) == (["threads"], ("trust_remote_code",))
