"""What one resolution gathers: who won for each key, what is wrong, what has no meaning. The rules of precedence are those
of config.layers; this module adds defaults, the check of what has won, and the check that every given key has a place."""

from __future__ import annotations

from typing import Any

from omnistage.config.keys import KEYS, Key
from omnistage.config.layers import Given, Layers
from omnistage.config.pipeline import ExecutionType, PipelineConfig
from omnistage.config.problems import ProblemsState
from omnistage.config.values import Number
from omnistage.core.errors import ConfigError

DEFAULT = "default"


class ResolutionState:
    """`provenance` maps paths to sources; `ignored` are paths of keys without meaning, for the one warning."""

    def __init__(self, pipeline: PipelineConfig, layers: Layers, problems: ProblemsState, ignored: list[str]) -> None:
        self.pipeline = pipeline
        self.layers = layers
        self.problems = problems
        self.ignored = ignored
        self.provenance: dict[str, str] = {}
        self.notes: list[str] = []

    def value(self, key: Key, path: str, *wide: str) -> Any:
        """The winner among `path`, then `wide`, of every layer, else the default."""
        given = self.layers.first(path, *wide)
        if given is None:
            if key.resolved:
                self.provenance[path] = DEFAULT
            return key.default
        self.provenance[path] = given.source
        try:
            key.check_winner(given.where, given.value)
        except ConfigError as error:
            self.problems.add(error)
        return float(given.value) if isinstance(key.type, Number) else given.value

    def table(self, key: Key, path: str) -> dict[str, Any]:
        """A mapping, every entry from the strongest layer that has it, on top of the default."""
        entries = self.layers.entries(path)
        self.provenance.update({f"{path}.{name}": given.source for name, given in entries.items()})
        return {**key.default, **{name: given.value for name, given in entries.items()}}

    def check_places(self) -> None:
        """Every given path must belong to a stage, edge or key that there is, and the stage's kind must have the key."""
        for path, given in self.layers.all():
            match path.split(".", maxsplit=3):
                case ["stages", stage_id, name, *_]:
                    self._check_stage_key(path, given, int(stage_id), name)
                case ["edges", edge, *_]:
                    names = [f"{edge.source}->{edge.target}" for edge in self.pipeline.edges]
                    if edge not in names:
                        self._refuse(given, f"there is no edge {edge}; accepted: {', '.join(names) or 'none'}")
                case [name] if KEYS[name].may_stand_at_a_stage:
                    self._check_wide_key(given, name)
                case _:
                    pass  # a key of the whole pipeline has its place

    def warnings(self) -> tuple[str, ...]:
        """One line for all keys without meaning, then the notes."""
        if not self.ignored:
            return tuple(self.notes)
        return (f"without meaning here, not used: {', '.join(dict.fromkeys(self.ignored))}", *self.notes)

    def _check_stage_key(self, path: str, given: Given, stage_id: int, name: str) -> None:
        kinds = {stage.stage_id: stage.execution_type for stage in self.pipeline.stages}
        if stage_id not in kinds:
            ids = ", ".join(str(known) for known in kinds)
            self._refuse(given, f"there is no stage {stage_id}; accepted: {ids}")
        elif kinds[stage_id] in KEYS[name].ignored_on:
            self.ignored.append(path)
        elif kinds[stage_id] not in KEYS[name].kinds:
            self._refuse(given, f"no key of {_article(kinds[stage_id])} stage; it is one of {_kinds(KEYS[name])}")

    def _check_wide_key(self, given: Given, name: str) -> None:
        kinds = {stage.execution_type for stage in self.pipeline.stages}
        if not kinds & KEYS[name].kinds:
            if kinds & KEYS[name].ignored_on:
                self.ignored.append(name)
            else:
                self._refuse(given, f"no stage of this pipeline has this key; it is one of {_kinds(KEYS[name])}")

    def _refuse(self, given: Given, reason: str) -> None:
        self.problems.add(ConfigError(f"{given.where}: {reason}", field=given.where))


def _kinds(key: Key) -> str:
    return ", ".join(kind for kind in ExecutionType if kind in key.kinds)


def _article(kind: ExecutionType) -> str:
    return f"a {kind}" if kind is ExecutionType.DIFFUSION else f"an {kind}"
