"""Deploy files: YAML that an operator writes, read strictly into layers of given values (config.layers).

Top of a file: pipeline, base_config, platforms, and what a platform section may hold too: stages (a list of mappings, each
with its stage_id), edges, connectors and the pipeline-wide keys of config.keys. `base_config` names a file beside this one,
or one of the package's folder deploy/; everything in it is weaker than everything here. Keys of other engines without
meaning here are gathered for one warning; any other unknown key is an error with a near name. Every section is checked,
also those of other platforms. Knows no pipeline: whether a stage exists, and has a key, the resolver asks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from omnistage.config.keys import KEYS, PIPELINE_KEYS, PLATFORMS, STAGE_KEYS, WITHOUT_MEANING, Key
from omnistage.config.layers import Given, Layer
from omnistage.config.problems import ProblemsState
from omnistage.config.values import Boolean, Integer, Table, ValueType
from omnistage.core.errors import ConfigError, did_you_mean

BUILTIN_FOLDER = Path(__file__).resolve().parent.parent / "deploy"
SECTIONS = ("stages", "edges", "connectors")
TOP_ONLY = ("pipeline", "base_config", "platforms")

CONNECTOR_KINDS = {"shm": "shm", "inproc": "inproc", "tcp": "tcp", "SharedMemoryConnector": "shm"}
"""Spellings of the kinds of connector there are."""

_POSITIVE = Integer(1, 2**20)
_EDGE_KEYS: dict[str, ValueType] = {
    "window": _POSITIVE,
    "chunk.first": _POSITIVE,
    "chunk.later": _POSITIVE,
    "chunk.adaptive": Boolean(),
}


@dataclass(frozen=True, slots=True)
class DeployFiles:
    """A deploy file and the files below it. `layers` are strongest first; `ignored` are paths of keys without meaning,
    `platforms` those that have a section."""

    layers: tuple[Layer, ...] = ()
    pipeline: Given | None = None
    ignored: tuple[str, ...] = ()
    platforms: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StageDeployConfig:
    """What one entry of `stages` says: values of config.keys.STAGE_KEYS by name, checked for type and range."""

    stage_id: int
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SectionReader:
    """Reads sections into layers; `source` names the place for provenance, `words` begins the messages, which go to
    `problems`."""

    source: str
    problems: ProblemsState
    words: str
    ignored: list[str] = field(default_factory=list)

    def layer(self, raw: Mapping[str, Any], *, skip: tuple[str, ...] = ()) -> dict[str, Given]:
        """One section: a file's top without `skip`, or a platform's."""
        layer: dict[str, Given] = {}
        wide = {str(name): value for name, value in raw.items() if name not in (*SECTIONS, *skip)}
        self.put(layer, "", "", self.keys("", wide, PIPELINE_KEYS, (*SECTIONS, *skip)))
        for index, entry in enumerate(self._list(raw, "stages")):
            stage = self.stage(f"stages[{index}]", entry)
            if stage is not None:
                below = dataclasses.replace(self, source=self._inside(f"stages[{index}]"))
                below.put(layer, f"stages.{stage.stage_id}.", f"stages[{index}].", stage.values)
        for index, entry in enumerate(self._list(raw, "edges")):
            layer.update(self.edge(f"edges[{index}]", entry))
        for name, entry in self.mapping(raw, "connectors").items():
            kind = self.connector(f"connectors.{name}", entry)
            if kind is not None:
                layer[f"connectors.{name}"] = Given(kind, self.source, self._below(f"connectors.{name}"))
        return layer

    def keys(
        self, prefix: str, values: Mapping[str, Any], known: tuple[Key, ...], also: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """The values that pass their checks. None means that nothing was given."""
        names = {key.name for key in known}
        passed: dict[str, Any] = {}
        for name, value in values.items():
            where = f"{prefix}{name}"
            if name in WITHOUT_MEANING:
                self.ignored.append(where)
            elif name not in names:
                self._misplaced_or_unknown(where, name, prefix, (*names, *also))
            elif value is not None:
                try:
                    KEYS[name].check(self._below(where), value)
                    passed[name] = value
                except ConfigError as error:
                    self.problems.add(error)
        return passed

    def stage(self, where: str, entry: Any) -> StageDeployConfig | None:
        """One entry of `stages`, or None if it does not say which stage it is about."""
        if not isinstance(entry, dict) or type(entry.get("stage_id")) is not int:
            self.refuse(where, entry, "a mapping with stage_id, an integer, and the stage's keys")
            return None
        values = {str(name): value for name, value in entry.items() if name != "stage_id"}
        return StageDeployConfig(entry["stage_id"], self.keys(f"{where}.", values, STAGE_KEYS, ("stage_id",)))

    def edge(self, where: str, entry: Any) -> dict[str, Given]:
        """One entry of `edges`: source, target, window, chunk {first, later, adaptive}."""
        ends = [entry.get(name) for name in ("source", "target")] if isinstance(entry, dict) else []
        if not ends or any(type(end) is not int for end in ends):
            self.refuse(where, entry, "a mapping with source and target, stage ids, and window or chunk")
            return {}
        layer: dict[str, Given] = {}
        for name, value in _flat({key: item for key, item in entry.items() if key not in ("source", "target")}):
            if name not in _EDGE_KEYS:
                self._unknown(f"{where}.{name}", name, _EDGE_KEYS)
            elif value is not None:
                key = Key(name, _EDGE_KEYS[name], None, "")
                try:
                    key.check(self._below(f"{where}.{name}"), value)
                    layer[f"edges.{ends[0]}->{ends[1]}.{name}"] = Given(
                        value, self._inside(where), self._below(f"{where}.{name}")
                    )
                except ConfigError as error:
                    self.problems.add(error)
        return layer

    def connector(self, where: str, entry: Any) -> str | None:
        """The kind of a connector, in either spelling: {kind: shm} or {name: SharedMemoryConnector, extra: {...}}."""
        if not isinstance(entry, dict) or not ({"kind", "name"} & entry.keys()):
            self.refuse(where, entry, "a mapping with kind")
            return None
        for name in entry.keys() - {"kind", "name", "extra"}:
            self._unknown(f"{where}.{name}", str(name), ("kind", "extra"))
        if entry.get("extra"):
            self.ignored.append(f"{where}.extra")
        kind = entry.get("kind", entry.get("name"))
        if not isinstance(kind, str):
            self.refuse(f"{where}.kind", kind, "shm, inproc, tcp")
            return None
        return CONNECTOR_KINDS.get(kind, kind)  # a kind there is not is refused when a stage uses it

    def put(self, layer: dict[str, Given], path: str, words: str, values: Mapping[str, Any]) -> None:
        """Mappings go in entry by entry, unless the key is one that this version refuses as a whole."""
        for name, value in values.items():
            key = KEYS[name]
            if isinstance(key.type, Table) and not key.only:
                for entry, item in value.items():
                    where = self._below(f"{words}{name}.{entry}")
                    layer[f"{path}{name}.{entry}"] = Given(item, self.source, where)
            else:
                layer[f"{path}{name}"] = Given(value, self.source, self._below(f"{words}{name}"))

    def _misplaced_or_unknown(self, where: str, name: str, prefix: str, known: tuple[str, ...]) -> None:
        if name in KEYS:
            what = "is for the whole pipeline, not for one stage" if prefix else "stands in an entry of stages"
            self.problems.add(ConfigError(f"{self._below(where)}: this key {what}", field=name))
        else:
            self._unknown(where, name, known)

    def _unknown(self, where: str, name: str, known: Iterable[str]) -> None:
        self.problems.add(ConfigError(f"{self._below(where)}: unknown key{did_you_mean(name, known)}", field=name))

    def refuse(self, where: str, value: object, accepted: str) -> None:
        self.problems.add(ConfigError.of(self._below(where), value, accepted))

    def _list(self, raw: Mapping[str, Any], name: str) -> list[Any]:
        value = raw.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.refuse(name, value, "a list of mappings")
            return []
        return value

    def mapping(self, raw: Mapping[str, Any], name: str) -> dict[str, Any]:
        value = raw.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            self.refuse(name, value, "a mapping of names")
            return {}
        return value

    def _below(self, where: str) -> str:
        return f"{self.words}{where}"

    def _inside(self, where: str) -> str:
        """The source of what stands in an entry of a list."""
        platform, bracket, file = self.source.partition(" (")
        return f"{platform} ({file.removesuffix(')')} {where})" if bracket else f"{self.source} {where}"


def read_deploy(path: Path, platform: str, problems: ProblemsState) -> DeployFiles:
    """The file at `path` and its bases, with the sections of `platform`. Raises ConfigError for a file that cannot be read
    and for bases that go round; everything else goes to `problems`."""
    files = list(_chain(path, problems))
    layers: list[Layer] = []
    ignored: list[str] = []
    pipeline: Given | None = None
    platforms: set[str] = set()
    for file, raw in files:
        reader = SectionReader(file.name, problems, f"{file.name} ", ignored)
        sections = _platform_layers(reader, raw)
        platforms |= sections.keys()
        layers += [sections[platform]] if platform in sections else []
        layers.append(reader.layer(raw, skip=TOP_ONLY))
        name = raw.get("pipeline")
        if name is not None and not isinstance(name, str):
            problems.add(ConfigError.of(f"{file.name} pipeline", name, "the name of a pipeline"))
        elif name is not None:
            pipeline = pipeline or Given(name, file.name, f"{file.name} pipeline")
    return DeployFiles(tuple(layers), pipeline, tuple(dict.fromkeys(ignored)), frozenset(platforms))


def _platform_layers(reader: SectionReader, raw: Mapping[str, Any]) -> dict[str, Layer]:
    sections: dict[str, Layer] = {}
    for name, section in reader.mapping(raw, "platforms").items():
        if name not in PLATFORMS:
            reader.problems.add(ConfigError.of(f"{reader.words}platforms", name, ", ".join(PLATFORMS)))
        elif section is not None and not isinstance(section, dict):
            reader.refuse(f"platforms.{name}", section, "a mapping")
        elif section is not None:
            source, words = f"platform {name} ({reader.source})", f"{reader.words}platforms.{name}."
            below = SectionReader(source, reader.problems, words, reader.ignored)
            sections[name] = below.layer(section)
    return sections


def _chain(path: Path, problems: ProblemsState) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The file, its base, the base of that, and so on."""
    seen: list[Path] = []
    following: Path | None = path
    while following is not None:
        resolved = following.resolve()
        if resolved in seen:
            ring = " -> ".join(file.name for file in [*seen[seen.index(resolved) :], resolved])
            raise ConfigError(f"base_config goes round: {ring}", field="base_config")
        seen.append(resolved)
        raw = _read_yaml(following)
        yield following, raw
        following = _base_of(following, raw.get("base_config"), problems)


def _base_of(file: Path, base: Any, problems: ProblemsState) -> Path | None:
    if base is None:
        return None
    if not isinstance(base, str) or not base:
        problems.add(ConfigError.of(f"{file.name} base_config", base, "a path relative to this file"))
        return None
    beside = file.parent / base
    builtin = BUILTIN_FOLDER / base
    return builtin if not beside.is_file() and builtin.is_file() else beside


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        twice = _duplicate_key(yaml.compose(text, Loader=yaml.SafeLoader))
        raw = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigError(f"deploy config {path} cannot be read: {reason}", field="deploy_config") from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"deploy config {path} is no YAML: {reason}", field="deploy_config") from None
    if twice is not None:
        raise ConfigError(f"deploy config {path}: {twice}", field="deploy_config")
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError.of(f"deploy config {path}", type(raw).__name__, "a mapping of keys at the top")
    return {str(name): value for name, value in raw.items()}


def _duplicate_key(root: Any) -> str | None:
    """YAML keeps the last of two equal keys in silence; here they are an error."""
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        match node:
            case yaml.MappingNode(value=pairs):
                names: set[str] = set()
                for name, value in pairs:
                    written = str(name.value)  # a key may itself be a list or a mapping
                    if written in names:
                        return f"the key {written!r} stands twice, again in line {name.start_mark.line + 1}"
                    names.add(written)
                    waiting.append(value)
            case yaml.SequenceNode(value=items):
                waiting.extend(items)
    return None


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """`chunk: {first: 1}` -> chunk.first, 1."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", item) for inner, item in value.items())
        else:
            yield str(name), value
