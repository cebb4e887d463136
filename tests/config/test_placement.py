"""Processes: which stages share one, what its arena holds, and connectors that must fit."""

from pathlib import Path
from typing import Any

import pytest

from omnistage.config.problems import problems_of
from omnistage.config.resolution import OmniConfigResolution, ProcessPlacement
from omnistage.config.resolve import resolve_omni_config
from omnistage.core.errors import ConfigError
from tests.config.samples import REGISTRY


def resolved(overrides: dict[str, Any] | None = None, **more: Any) -> OmniConfigResolution:
    return resolve_omni_config("sample", overrides, registry=REGISTRY, **more)


def problems(overrides: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        resolved(overrides)
    return problems_of(caught.value)


def test_every_stage_has_its_own_process_by_default() -> None:
    """Fault: stages that share a worker unasked; an arena that does not hold every window of every
    running request, and a quarter for the oldest one of each edge."""
    assert resolved({"stage_0_max_num_seqs": 10, "stage_1_num_replicas": 2}).processes == (
        ProcessPlacement("writer", (0,), 1, {}, 10 * 3 * 1000 * 5 // 4),
        ProcessPlacement("speaker", (1,), 2, {}, 8 * 4 * 500 * 5 // 4),
        ProcessPlacement("painter", (2,), 1, {}, 0),
    )


def test_stages_that_name_one_process_share_it() -> None:
    """Fault: an edge inside a process that takes room in its arena, or goes through shared memory."""
    resolution = resolved({"stage_0_process": "both", "stage_1_process": "both", "stage_2_process": "other"})
    assert [(plan.name, plan.stage_ids, plan.arena_nbytes) for plan in resolution.processes] == [
        ("both", (0, 1), 8 * 4 * 500 * 5 // 4),
        ("other", (2,), 0),
    ]
    assert [resolution.connector_of(edge) for edge in resolution.edges] == ["inproc", "shm"]
    assert [output.connector for output in resolution.stage(2).outputs] == ["shm"]


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"stage_1_num_replicas": 2}, "process 'both': its stages need equal num_replicas (stage 0: 1, stage 1: 2)"),
        ({"stage_1_env": {"A": "b"}}, "process 'both': its stages need equal env (stage 0: {}, stage 1: {'A': 'b'})"),
    ],
)
def test_stages_of_one_process_agree(more: dict[str, Any], error: str) -> None:
    """Fault: half a stage's replicas without a worker; an environment that one stage gets and the other does not."""
    assert problems({"stage_0_process": "both", "stage_1_process": "both", **more}) == (error,)


def test_inline_puts_everything_into_one_process() -> None:
    """Fault: an arena, a second process or a replica where there is only the caller's process."""
    resolution = resolved({"inline": True, "stage_0_process": "own"})
    assert resolution.processes == (ProcessPlacement("inline", (0, 1, 2), 1, {}, 0),)
    assert resolution.provenance["stages.0.process"] == "inline"
    assert {output.connector for stage in resolution.stages for output in stage.outputs} == {"inproc"}


def test_entry_stages_have_helpers_and_the_callers_process_has_none() -> None:
    """Fault: a stage that is fed starts helpers; a caller's process does, or drops the wish for some in silence."""
    for given, helpers in (({}, 1), ({"processor_workers": 3}, 3), ({"processor_workers": 0}, 0)):
        assert [stage.processor_workers for stage in resolved(given).stages] == [helpers, 0, 0]
    for given in ({}, {"processor_workers": 0}):
        resolution = resolved({"inline": True, **given})
        assert resolution.deploy.processor_workers == resolution.stages[0].processor_workers == 0
        assert resolution.provenance["processor_workers"] == ("cli" if given else "inline")
    assert problems({"inline": True, "processor_workers": 2}) == (
        "processor_workers: 2 is not accepted; accepted: 0 (inline: the caller's process prepares inputs itself)",
    )


def test_the_callers_process_is_the_drivers_too() -> None:
    """Fault: a driver beside a caller who asked for everything in its own process; that wish dropped in silence."""
    assert resolved().deploy.engine_process
    for given in ({}, {"engine_process": False}):
        resolution = resolved({"inline": True, **given})
        assert not resolution.deploy.engine_process
        assert resolution.provenance["engine_process"] == ("cli" if given else "inline")
    accepted = "false beside `inline: true`, which runs the driver and every stage in the caller's process"
    refused = f"engine_process: True is not accepted; accepted: {accepted}"
    assert problems({"inline": True, "engine_process": True}) == (refused,)


def test_inline_has_one_replica_and_the_environment_it_has() -> None:
    """Fault: options that do nothing."""
    assert problems({"inline": True, "num_replicas": 2, "stage_1_env": {"A": "b"}}) == (
        "process 'inline': its stages need equal env (stage 0: {}, stage 1: {'A': 'b'}, stage 2: {})",
        "stages.0.num_replicas: 2 is not accepted; accepted: 1 (inline)",
        "stages.1.num_replicas: 2 is not accepted; accepted: 1 (inline)",
        "stages.1.env: {'A': 'b'} is not accepted; accepted: nothing (inline)",
        "stages.2.num_replicas: 2 is not accepted; accepted: 1 (inline)",
    )


CONNECTORS = {"local": {"kind": "inproc"}, "shared": {"name": "SharedMemoryConnector"}, "far": {"kind": "mooncake"}}


def test_connectors_that_fit_are_accepted(tmp_path: Path) -> None:
    """Fault: a correct wiring refused, or its author not named."""
    path = tmp_path / "deploy.yaml"
    path.write_text("stages: [{stage_id: 1, input_connectors: {from_stage_0: shm}}]")
    overrides = {"connectors": CONNECTORS, "stage_0_output_connectors": {"to_stage_2": "shared"}}
    resolution = resolved(overrides, deploy_config=path)
    assert resolution.provenance["edges.0->1.connector"] == "stages.1.input_connectors.from_stage_0"
    assert resolution.provenance["edges.0->2.connector"] == "stages.0.output_connectors.to_stage_2"
    assert resolution.warnings == ("without meaning here, not used: connectors.local, connectors.far",)


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (
            {"stage_1_input_connectors": {"from_stage_0": "local"}},
            "'inproc' is not accepted; accepted: shm or tcp (its stages are in two",
        ),
        (
            {"stage_1_input_connectors": {"from_stage_0": "far"}},
            "from_stage_0: 'mooncake' is not accepted; accepted: shm or tcp",
        ),
        (
            {"stage_0_process": "a", "stage_1_process": "a", "stage_0_output_connectors": {"to_stage_1": "shared"}},
            "to_stage_1: 'shm' is not accepted; accepted: inproc (its stages are in one process)",
        ),
        (
            {"stage_1_input_connectors": {"from_stage_0": "lokal"}},
            "there is no connector 'lokal'; did you mean 'local'?",
        ),
        ({"stage_1_input_connectors": {"from_stage_2": "shm"}}, "stages.1.input_connectors.from_stage_2: no such edge"),
        ({"stage_1_input_connectors": {"stage_0": "shm"}}, "stages.1.input_connectors.stage_0: no such edge"),
        (
            {"stage_0_output_connectors": {"from_stage_1": "shm"}},
            "stages.0.output_connectors.from_stage_1: no such edge",
        ),
    ],
)
def test_a_connector_that_cannot_be_is_refused(overrides: dict[str, Any], error: str) -> None:
    """Fault: a wiring that is believed and not done."""
    (problem,) = problems({"connectors": CONNECTORS, **overrides})
    assert error in problem


def test_an_edge_can_go_by_tcp(tmp_path: Path) -> None:
    """Fault: a connector that is named and not used, or bytes that are set aside twice or not at all."""
    path = tmp_path / "deploy.yaml"
    path.write_text(
        "connectors: {between: {kind: tcp}}\n"
        "stages: [{stage_id: 0, host: 127.0.0.2}, {stage_id: 1, input_connectors: {from_stage_0: between}}]"
    )
    resolution = resolved(deploy_config=path)
    assert [resolution.connector_of(edge) for edge in resolution.edges] == ["tcp", "shm"]
    assert (resolution.stage(0).host, resolution.stage(1).host) == ("127.0.0.2", "127.0.0.1")
    whole = resolved().processes
    writer, speaker, painter = resolution.processes
    assert (writer.tcp_nbytes, speaker.tcp_nbytes, painter.tcp_nbytes) == (8 * 3 * 1000, 0, 0)
    assert writer.arena_nbytes < whole[0].arena_nbytes and (speaker, painter) == whole[1:]
    (problem,) = problems({"stage_0_process": "a", "stage_1_process": "a", "stage_1_host": "127.0.0.3"})
    assert "process 'a': its stages need equal host (stage 0: 127.0.0.1, stage 1: 127.0.0.3)" in problem


def test_inline_has_no_use_for_connectors() -> None:
    """Fault: a file for servers that cannot be run inline, or a wiring ignored in silence."""
    (warning,) = resolved({"inline": True, "stage_1_input_connectors": {"from_stage_0": "shm"}}).warnings
    assert warning == "without meaning here, not used: stages.1.input_connectors.from_stage_0"
