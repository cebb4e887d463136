"""A resolution as rows for people: every key by its path, its value, and where the value came from. Pure; prints nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnistage.config.keys import KEYS
from omnistage.config.resolution import OmniConfigResolution
from omnistage.config.stage import ARStageConfig, StageConfig
from omnistage.config.state import DEFAULT


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Difference:
    """`before` and `after` are None where the key has no place."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What one replica of a stage may take beside its weights, in bytes: its KV cache, and its requests' inputs at most."""

    name: str
    num_replicas: int
    kv_cache_nbytes: int
    inputs_nbytes: int


def rows(resolution: OmniConfigResolution) -> tuple[Row, ...]:
    """Everything that was decided. Values that differ from what an operator wrote are those that run."""
    found = [Row("pipeline", resolution.pipeline.model_type, resolution.provenance["pipeline"])]
    for path, source in resolution.provenance.items():
        if path != "pipeline" and ".default_sampling_params." not in path:
            found.append(Row(path, _value(resolution, path), source))
    for stage in resolution.stages:
        found.extend(_params(resolution, stage))
    found.extend(
        Row(f"processes.{process.name}.arena_nbytes", process.arena_nbytes, "derived")
        for process in resolution.processes
    )
    return tuple(found)


def differences(before: OmniConfigResolution, after: OmniConfigResolution) -> tuple[Difference, ...]:
    """The keys whose values two configurations disagree about, in the order of the first."""
    old, new = ({row.key: row.value for row in rows(resolution)} for resolution in (before, after))
    return tuple(
        Difference(key, old.get(key), new.get(key))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    )


def memory(resolution: OmniConfigResolution) -> tuple[StageMemory, ...]:
    return tuple(
        StageMemory(
            name=stage.model_stage,
            num_replicas=stage.num_replicas,
            kv_cache_nbytes=stage.kv_cache_bytes if isinstance(stage, ARStageConfig) else 0,
            inputs_nbytes=stage.max_input_nbytes * (stage.max_num_seqs + stage.lookahead),
        )
        for stage in resolution.stages
    )


def _params(resolution: OmniConfigResolution, stage: StageConfig) -> list[Row]:
    params = stage.default_sampling_params
    prefix = f"stages.{stage.stage_id}.default_sampling_params"
    return [
        Row(f"{prefix}.{name}", getattr(params, name), resolution.provenance.get(f"{prefix}.{name}", DEFAULT))
        for name in params.__struct_fields__
    ]


def _value(resolution: OmniConfigResolution, path: str) -> Any:
    match path.split(".", maxsplit=3):
        case ["stages", stage_id, key]:
            # A key that is known to be refused was given with the one value it may have.
            return getattr(resolution.stage(int(stage_id)), key) if KEYS[key].resolved else KEYS[key].default
        case ["stages", stage_id, "env", name]:
            return resolution.stage(int(stage_id)).env[name]
        case ["edges", ends, *key]:
            return _edge_value(resolution, ends, key)
        case ["voices", *name]:
            return resolution.deploy.voices[".".join(name)]
        case ["connectors", *name]:
            return resolution.deploy.connectors[".".join(name)]
        case _:
            return getattr(resolution.deploy, path)


def _edge_value(resolution: OmniConfigResolution, ends: str, key: list[str]) -> Any:
    edge = next(edge for edge in resolution.edges if f"{edge.source}->{edge.target}" == ends)
    match key:
        case ["connector"]:
            return resolution.connector_of(edge)
        case ["chunk", name]:
            return getattr(edge.chunk, name)
        case _:
            return getattr(edge, key[0])
