"""Layers: the strongest one that has a path wins, entries of mappings are merged."""

from typing import Any

from omnistage.config.layers import Given, Layers


def layer(source: str, **values: Any) -> dict[str, Given]:
    return {path.replace("__", "."): Given(value, source, path) for path, value in values.items()}


def test_the_strongest_layer_wins_and_within_it_the_stage() -> None:
    """Fault: a pipeline-wide value of a strong layer beaten by a stage's value of a weak one, or the reverse within one."""
    layers = Layers((layer("strong", threads=1), layer("weak", stages__0__threads=2, threads=3)))
    assert layers.first("stages.0.threads", "threads") == Given(1, "strong", "threads")
    assert Layers(layers.layers[1:]).first("stages.0.threads", "threads") == Given(2, "weak", "stages__0__threads")
    assert layers.first("absent") is None


def test_mappings_are_merged_entry_by_entry() -> None:
    """Fault: a mapping that is replaced whole, or a prefix that takes a longer name's entries."""
    layers = Layers((layer("strong", env__A=1, envious__A=9), layer("weak", env__A=2, env__B=3)))
    assert {name: given.value for name, given in layers.entries("env").items()} == {"A": 1, "B": 3}


def test_everything_that_was_given_is_listed_also_the_losers() -> None:
    """Fault: a misplaced key that is not noticed because it lost."""
    layers = Layers((layer("strong", a=1), layer("weak", a=2)))
    assert [(path, given.value) for path, given in layers.all()] == [("a", 1), ("a", 2)]
