"""The composition root: from a folder and flags to what admission knows and a runtime that has not been started."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from omnistage.core.errors import ConfigError, ModelNotFoundError
from omnistage.core.params import SamplingParams
from omnistage.engine.compose import composed, limits_of, require_processes, resolved, runtime_of, served_model
from omnistage.runtime.driver import Driver
from omnistage.runtime.inline import InlineRuntime
from omnistage.runtime.remote import RemoteDriver


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a causal language model's folder looks like from outside."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def test_a_folder_becomes_a_served_model(folder: Path) -> None:
    """Fault: what an operator has configured does not reach admission or the machine."""
    overrides = {
        "pipeline": "causal_lm",
        "request_timeout_s": 5.0,
        "max_queued_requests": 3,
        "stage_0_default_sampling_params": {"top_k": 4},
    }
    served, runtime = composed(str(folder), overrides=overrides)
    assert served.modalities == ("text",)
    assert (served.request_timeout_s, served.max_queued_requests) == (5.0, 3)
    params = served.stages[0].defaults
    assert isinstance(params, SamplingParams)
    assert params.top_k == 4
    runtime.close(0.0)


def test_what_a_pipeline_is_restricted_to_reaches_the_server(folder: Path) -> None:
    """Fault: a restriction that is written down and read by nobody."""
    resolution = resolved(str(folder))
    restricted = replace(resolution.pipeline, endpoint_restrictions=("/v1/audio/speech",))
    assert served_model(replace(resolution, pipeline=restricted)).endpoints == ("/v1/audio/speech",)
    assert served_model(resolution).endpoints == ()


def test_what_a_pipeline_reads_reaches_admission_with_its_bound(folder: Path) -> None:
    """Fault: a model that sees is served as one that reads text only, or without a bound on what it is shown."""
    resolution = resolved(str(folder), overrides={"stage_0_max_input_nbytes": 12345})
    seeing = replace(resolution.pipeline, reads=("text", "image"))
    served = served_model(replace(resolution, pipeline=seeing))
    assert (served.reads, served.max_media_nbytes) == (("text", "image"), 12345)
    assert served_model(resolution).reads == ("text",)


def test_inline_stages_are_for_omni_alone(folder: Path) -> None:
    """Fault: a server whose stages it could neither watch nor restart."""
    resolution = resolved(str(folder), overrides={"pipeline": "causal_lm", "inline": True})
    runtime = runtime_of(resolution)
    assert isinstance(runtime, InlineRuntime)
    runtime.close(0.0)
    with pytest.raises(ConfigError, match="inline: True is not accepted"):
        require_processes(resolution)
    require_processes(resolved(str(folder), overrides={"pipeline": "causal_lm"}))


def test_the_driver_has_a_process_unless_a_thread_is_asked_for(folder: Path) -> None:
    """Fault: a key that is accepted and ignored."""
    for given, kind in (
        ({}, RemoteDriver),
        ({"engine_process": True}, RemoteDriver),
        ({"engine_process": False}, Driver),
    ):
        resolution = resolved(str(folder), overrides={"pipeline": "causal_lm", **given})
        require_processes(resolution)
        runtime = runtime_of(resolution)
        assert isinstance(runtime, kind)
        runtime.close(0.0)


@pytest.mark.parametrize("apart", [True, False])
def test_the_budget_for_large_payloads_reaches_every_worker(folder: Path, apart: bool) -> None:
    """Fault: a key that an operator sets and nothing obeys; a port that is open although nothing goes by tcp."""
    for given, expected in (({}, 256 * 2**20), ({"arena_oversize_nbytes": 5}, 5)):
        overrides = {"pipeline": "causal_lm", "engine_process": apart, **given}
        runtime = runtime_of(resolved(str(folder), overrides=overrides))
        if isinstance(runtime, RemoteDriver):
            plans = runtime._plan.processes
        else:
            assert isinstance(runtime, Driver)
            plans = tuple(runtime._supervisor._processes.values())
        assert [(plan.arena_oversize_nbytes, plan.tcp_nbytes) for plan in plans] == [(expected, None)]
        runtime.close(0.0)


@pytest.mark.parametrize("apart", [True, False])
def test_a_zygote_can_be_done_without(folder: Path, apart: bool) -> None:
    """Fault: a key that an operator sets and nothing obeys."""
    for given, is_wanted in (({}, True), ({"zygote": False}, False)):
        overrides = {"pipeline": "causal_lm", "engine_process": apart, **given}
        runtime = runtime_of(resolved(str(folder), overrides=overrides))
        if isinstance(runtime, RemoteDriver):
            assert runtime._plan.zygote == is_wanted
        else:
            assert isinstance(runtime, Driver)
            keeper = runtime._supervisor.zygote
            keeper.saw(all_ready=True)
            assert (keeper.deadline < math.inf) == is_wanted
        runtime.close(0.0)


def test_a_runtime_records_where_it_is_asked_to(folder: Path) -> None:
    """Fault: a record that is asked for and not kept."""
    resolution = resolved(str(folder), overrides={"pipeline": "causal_lm"})
    runtime_of(resolution, record_events=folder / "events").close(0.0)
    assert (folder / "events").is_file()


def test_a_pipeline_can_be_named(folder: Path) -> None:
    """Fault: the name among the overrides is taken for an unknown key."""
    with pytest.raises(ConfigError, match="there is no pipeline 'nosuch'"):
        resolved(str(folder), overrides={"pipeline": "nosuch"})


def test_a_platform_can_be_named(folder: Path, tmp_path: Path) -> None:
    """Fault: the section of another platform holds, or a platform that there is not is passed over."""
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("platforms: {cuda: {lookahead: 5}}")
    named = resolved(str(folder), deploy_config=str(deploy), overrides={"platform": "cuda"})
    assert (named.deploy.platform, named.stages[0].lookahead) == ("cuda", 5)
    assert resolved(str(folder), deploy_config=str(deploy)).stages[0].lookahead == 2
    with pytest.raises(ConfigError, match="platform: 'tpu' is not accepted"):
        resolved(str(folder), overrides={"platform": "tpu"})


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    """Fault: a model that does not exist is found out when a stage starts."""
    with pytest.raises(ModelNotFoundError, match="no such folder"):
        served_model(resolved(str(tmp_path / "nosuch")))


def test_the_machine_gets_the_deployed_limits(folder: Path) -> None:
    """Fault: a limit that an operator has set is checked at the door and forgotten inside."""
    overrides = {"request_timeout_s": 5.0, "max_queued_requests": 3, "client_window_nbytes": 7, "client_stall_s": 2.0}
    limits = limits_of(resolved(str(folder), overrides=overrides).deploy)
    assert (limits.request_timeout_s, limits.max_queued_requests) == (5.0, 3)
    assert (limits.client_window_nbytes, limits.client_stall_s) == (7, 2.0)
