"""Which stages share a worker process, how large its arena is, and whether the operator's connectors fit that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from omnistage.config.pipeline import Edge
from omnistage.config.resolution import CLIENT_WINDOW_ITEMS, DeployConfig, ProcessPlacement
from omnistage.config.stage import EdgeId, OutputEdge, StageConfig, arena_edges, arena_nbytes
from omnistage.config.state import ResolutionState
from omnistage.core.errors import ConfigError, did_you_mean

_BUILTIN = ("shm", "inproc", "tcp")
_SIDE = {"input_connectors": re.compile(r"from_stage_(\d+)"), "output_connectors": re.compile(r"to_stage_(\d+)")}


def place_stages(
    state: ResolutionState, stages: tuple[StageConfig, ...], edges: tuple[Edge, ...], *, inline: bool
) -> tuple[ProcessPlacement, ...]:
    """One placement per name of a process, in the order of the stages."""
    names = dict.fromkeys(stage.process for stage in stages)
    placements = []
    for name in names:
        members = [stage for stage in stages if stage.process == name]
        _check_equal(state, name, "num_replicas", members, lambda stage: stage.num_replicas)
        _check_equal(state, name, "host", members, lambda stage: stage.host)
        _check_equal(state, name, "env", members, lambda stage: stage.env)
        if inline:
            _check_inline(state, members)
        arena = 0 if inline else _arena_nbytes(state, members, edges)
        tcp = _leaving_nbytes(members, edges, "tcp")
        ids = tuple(stage.stage_id for stage in members)
        placements.append(ProcessPlacement(name, ids, members[0].num_replicas, members[0].env, arena, tcp))
    return tuple(placements)


def _check_equal(
    state: ResolutionState, name: str, key: str, members: list[StageConfig], value: Callable[[StageConfig], object]
) -> None:
    if any(value(stage) != value(members[0]) for stage in members):
        each = ", ".join(f"stage {stage.stage_id}: {value(stage)}" for stage in members)
        state.problems.add(ConfigError(f"process {name!r}: its stages need equal {key} ({each})", field=key))


def _check_inline(state: ResolutionState, members: list[StageConfig]) -> None:
    """The caller's process is one replica with the environment that it has."""
    for stage in members:
        path = f"stages.{stage.stage_id}"
        if stage.num_replicas != 1:
            state.problems.add(ConfigError.of(f"{path}.num_replicas", stage.num_replicas, "1 (inline)"))
        if stage.env:
            state.problems.add(ConfigError.of(f"{path}.env", dict(stage.env), "nothing (inline)"))


def _arena_nbytes(state: ResolutionState, members: list[StageConfig], edges: tuple[Edge, ...]) -> int:
    """Room for what leaves the process: every running request's window on every edge, and final outputs to the caller."""
    seats = {stage.stage_id: stage.max_num_seqs for stage in members}
    between = _leaving_nbytes(members, edges, "shm")
    finals = [stage for stage in state.pipeline.stages if stage.stage_id in seats and stage.final_output]
    to_caller = sum(seats[stage.stage_id] * CLIENT_WINDOW_ITEMS * stage.item_nbytes for stage in finals)
    return arena_nbytes(between + to_caller, len(arena_edges(members)))


def _leaving_nbytes(members: list[StageConfig], edges: tuple[Edge, ...], connector: str) -> int:
    """Bytes of every running request's window on the edges that leave the process by `connector`."""
    seats = {stage.stage_id: stage.max_num_seqs for stage in members}
    sent = {
        (stage.stage_id, output.target)
        for stage in members
        for output in stage.outputs
        if output.connector == connector
    }
    return sum(
        seats[edge.source] * edge.window * edge.item_nbytes for edge in edges if (edge.source, edge.target) in sent
    )


def send_by_tcp(stages: tuple[StageConfig, ...], chosen: frozenset[EdgeId]) -> tuple[StageConfig, ...]:
    """The stages with the edges of `chosen` going by tcp."""

    def wired(stage: StageConfig) -> tuple[OutputEdge, ...]:
        return tuple(
            replace(output, connector="tcp") if (stage.stage_id, output.target) in chosen else output
            for output in stage.outputs
        )

    return tuple(replace(stage, outputs=wired(stage)) for stage in stages)


def name_connectors(stages: tuple[StageConfig, ...], *, inline: bool) -> tuple[StageConfig, ...]:
    """The stages with the connector of each output: what stays in a process goes over by reference. The caller's process
    is another one, unless everything runs in it."""
    home = {stage.stage_id: stage.process for stage in stages}
    named = []
    for stage in stages:
        outputs = tuple(
            replace(output, connector="inproc" if inline or home.get(output.target) == stage.process else "shm")
            for output in stage.outputs
        )
        named.append(replace(stage, outputs=outputs))
    return tuple(named)


def check_connectors(
    state: ResolutionState, stages: tuple[StageConfig, ...], edges: tuple[Edge, ...], deploy: DeployConfig
) -> frozenset[EdgeId]:
    """Connectors that stages name must exist, belong to an edge, and be of the kind that the placement asks for. Comes back
    with the edges that go by tcp."""
    fitting = {(stage.stage_id, output.target): output.connector for stage in stages for output in stage.outputs}
    used: set[str] = set()
    by_tcp: set[EdgeId] = set()
    state.provenance.update({f"edges.{edge.source}->{edge.target}.connector": "placement" for edge in edges})
    for path, ends, name in _named(state):
        used.add(name)
        if ends is None or not any((edge.source, edge.target) == ends for edge in edges):
            accepted = "from_stage_<source> of input_connectors, to_stage_<target> of output_connectors"
            state.problems.add(ConfigError(f"{path}: no such edge; accepted: {accepted}", field=path))
        elif name not in deploy.connectors and name not in _BUILTIN:
            known = did_you_mean(name, [*deploy.connectors, *_BUILTIN])
            state.problems.add(ConfigError(f"{path}: there is no connector {name!r}{known}", field=path))
        elif deploy.inline:
            state.ignored.append(path)
        else:
            kind = deploy.connectors.get(name, name)
            if kind == "tcp" and fitting[ends] == "shm":
                by_tcp.add(ends)
            elif kind != fitting[ends]:
                fits = "inproc (its stages are in one process)"
                if fitting[ends] == "shm":
                    fits = "shm or tcp (its stages are in two processes)"
                state.problems.add(ConfigError.of(path, kind, fits))
            state.provenance[f"edges.{ends[0]}->{ends[1]}.connector"] = path
    state.ignored.extend(f"connectors.{name}" for name in deploy.connectors if name not in used)
    return frozenset(by_tcp)


def _named(state: ResolutionState) -> Iterator[tuple[str, tuple[int, int] | None, str]]:
    """(path, (source, target) or None for a malformed name, connector) of everything that stages say of connectors."""
    for stage in state.pipeline.stages:
        for side, form in _SIDE.items():
            prefix = f"stages.{stage.stage_id}.{side}"
            for entry, given in state.layers.entries(prefix).items():
                found = form.fullmatch(entry)
                other = int(found[1]) if found else None
                pair = (other, stage.stage_id) if side == "input_connectors" else (stage.stage_id, other)
                ends = None if pair[0] is None or pair[1] is None else (pair[0], pair[1])
                yield f"{prefix}.{entry}", ends, given.value
