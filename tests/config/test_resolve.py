"""Resolution: the documented precedence, explicit empty values, one error for all that is wrong."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.config import resolve
from omnistage.config.problems import problems_of
from omnistage.config.resolution import OmniConfigResolution
from omnistage.config.resolve import resolve_omni_config
from omnistage.core.errors import ConfigError, ModelNotFoundError
from tests.config.samples import HERE, REGISTRY


def resolved(overrides: dict[str, Any] | None = None, **more: Any) -> OmniConfigResolution:
    return resolve_omni_config("sample", overrides, registry=REGISTRY, **more)


def from_yaml(folder: Path, text: str, overrides: dict[str, Any] | None = None, **more: Any) -> OmniConfigResolution:
    path = folder / "deploy.yaml"
    path.write_text(text)
    return resolved(overrides, deploy_config=path, **more)


# Strongest first: how a level writes the value of a key for stage 0, and the source that provenance names.
LEVELS = {
    "stage override": "cli",
    "global override": "cli",
    "platform stage": "platform cpu (deploy.yaml stages[0])",
    "platform": "platform cpu (deploy.yaml)",
    "stage": "deploy.yaml stages[0]",
    "pipeline": "deploy.yaml",
    "base platform stage": "platform cpu (base.yaml stages[0])",
    "base platform": "platform cpu (base.yaml)",
    "base stage": "base.yaml stages[0]",
    "base": "base.yaml",
}
CANDIDATES: dict[str, list[Any]] = {
    "max_num_seqs": list(range(1, 20)),
    "lookahead": list(range(10)),  # 0 is a value
    "step_timeout_s": [float(seconds) for seconds in range(1, 20)],
    "enable_prefix_caching": [True, False],
    "dtype": ["float32", "bfloat16"],
}
STAGE_DEFAULTS = {
    "max_num_seqs": 8,
    "lookahead": 2,
    "step_timeout_s": 60.0,
    "enable_prefix_caching": True,
    "dtype": "float32",
}


def deploy_file(prefix: str, name: str, given_at: dict[str, Any]) -> dict[str, Any]:
    """A file's content that gives `name` at those of its four levels which stand in `given_at`."""
    content: dict[str, Any] = {}
    section: dict[str, Any] = {}
    for level, target, staged in (
        (f"{prefix}platform stage", section, True),
        ((f"{prefix}platform"), section, False),
        (f"{prefix}stage", content, True),
        (prefix.strip() or "pipeline", content, False),
    ):
        if level in given_at and staged:
            target["stages"] = [{"stage_id": 0, name: given_at[level]}]
        elif level in given_at:
            target[name] = given_at[level]
    return content | ({"platforms": {"cpu": section}} if section else {})


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_documented_winner_wins_and_provenance_names_it(data: st.DataObject) -> None:
    """Fault: any two levels in the wrong order, False or 0 taken for absent, a source that names a loser."""
    name = data.draw(st.sampled_from(list(CANDIDATES)))
    levels = data.draw(st.sets(st.sampled_from(list(LEVELS))))
    given_at = {level: data.draw(st.sampled_from(CANDIDATES[name]), label=level) for level in LEVELS if level in levels}
    overrides = {
        override: given_at.get(level)  # None: not given
        for override, level in ((f"stage_0_{name}", "stage override"), (name, "global override"))
    }
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder, "base.yaml")
        base.write_text(yaml.safe_dump(deploy_file("base ", name, given_at)))
        file = Path(folder, "deploy.yaml")
        file.write_text(yaml.safe_dump({"base_config": "base.yaml", **deploy_file("", name, given_at)}))
        resolution = resolved(overrides, deploy_config=file)
    winner = next(iter(given_at), None)  # LEVELS stand strongest first, and so does given_at
    assert getattr(resolution.stages[0], name) == (given_at[winner] if winner else STAGE_DEFAULTS[name])
    assert resolution.provenance[f"stages.0.{name}"] == (LEVELS[winner] if winner else "default")


@pytest.mark.parametrize("call", [None, True, False])
@pytest.mark.parametrize("file", [None, True, False])
def test_a_boolean_has_three_states(tmp_path: Path, call: bool | None, file: bool | None) -> None:
    """Fault: false in a call that does not beat true in a file, or null that does."""
    text = {None: "async_chunk: null", True: "async_chunk: true", False: "async_chunk: false"}[file]
    resolution = from_yaml(tmp_path, text, {"async_chunk": call})
    assert resolution.deploy.async_chunk is (call if call is not None else file if file is not None else True)


def test_mappings_are_merged_over_all_levels(tmp_path: Path) -> None:
    """Fault: one parameter in a call that drops the file's others."""
    text = "stages: [{stage_id: 0, default_sampling_params: {temperature: 0, top_p: 0.5}, env: {A: x, B: x}}]"
    call = {"stage_0_default_sampling_params": {"top_p": 0.9, "seed": 0}, "stage_0_env": {"B": ""}}
    resolution = from_yaml(tmp_path, text, call)
    params = resolution.stages[0].default_sampling_params
    assert (params.temperature, params.top_p, params.seed) == (0.0, 0.9, 0)  # type: ignore[union-attr]
    assert resolution.stages[0].env == {"A": "x", "B": ""}
    path = "stages.0.default_sampling_params"
    assert resolution.provenance[f"{path}.temperature"] == "deploy.yaml stages[0]"
    assert resolution.provenance[f"{path}.top_p"] == "cli"


def test_the_defaults_are_those_of_the_table() -> None:
    """Fault: a documented default that is not the one that runs."""
    deploy = resolved().deploy
    assert (deploy.client_stall_s, deploy.request_timeout_s, deploy.max_queued_requests) == (30.0, 600.0, 256)
    assert (deploy.drain_timeout_s, deploy.async_chunk, deploy.inline, deploy.platform) == (30.0, True, False, "cpu")


def test_a_queue_without_a_place_is_refused() -> None:
    """Fault: a server that refuses every request, because each waits in the queue before a stage takes it; an Omni that waits
    for ever."""
    with pytest.raises(ConfigError) as caught:
        resolved({"max_queued_requests": 0})
    told = ("max_queued_requests: 0 is not accepted; accepted: an integer in [1, 1048576]",)
    assert problems_of(caught.value) == told
    assert resolved({"max_queued_requests": 1}).deploy.max_queued_requests == 1


def test_without_async_chunk_no_edge_streams() -> None:
    """Fault: a stage that still gets pieces; the answer to the caller gathered as well."""
    resolution = resolved({"async_chunk": False})
    assert [edge.streaming for edge in resolution.edges] == [False, False]
    assert [output.streaming for output in resolution.stages[0].outputs] == [False, False, True]


def test_everything_that_is_wrong_comes_at_once(tmp_path: Path) -> None:
    """Fault: one repair per start."""
    text = """
        thraeds: 1
        voices: {alloy: nobody}
        stages:
          - {stage_id: 0, ulysses_degree: 1, devices: "0"}
          - {stage_id: 9, threads: 1}
        """
    with pytest.raises(ConfigError) as caught:
        from_yaml(tmp_path, text, {"stage_0_max_model_len": 0})
    assert problems_of(caught.value) == (
        "deploy.yaml thraeds: unknown key; did you mean 'threads'?",
        "stage_0_max_model_len: 0 is not accepted; accepted: an integer in [1, 16777216]",
        "deploy.yaml stages[0].ulysses_degree: no key of an llm_ar stage; it is one of diffusion",
        "deploy.yaml stages[1].threads: there is no stage 9; accepted: 0, 1, 2",
        "voices.alloy: 'nobody' is not accepted; accepted: anna, otto",
        "deploy.yaml stages[0].devices: '0' is not accepted; accepted: cpu (other platforms are not in this version)",
    )


def test_a_refused_value_of_a_loser_is_no_error(tmp_path: Path) -> None:
    """Fault: a file for another machine that cannot be made to run here by its cpu section."""
    text = """
        stages: [{stage_id: 0, devices: "0", tensor_parallel_size: 2}]
        platforms: {cpu: {stages: [{stage_id: 0, devices: cpu, tensor_parallel_size: 1}]}}
        """
    assert from_yaml(tmp_path, text).stages[0].devices == "cpu"


def test_a_foreign_deploy_file_loads_with_one_warning(tmp_path: Path) -> None:
    """Fault: a deploy file of another engine refused for keys that change nothing, or a key lost in silence."""
    text = """
        async_chunk: true
        connectors:
          connector_of_shared_memory:
            name: SharedMemoryConnector
            extra: {codec_chunk_frames: 25}
        stages:
          - stage_id: 0
            max_num_batched_tokens: 32768
            max_num_seqs: 64
            trust_remote_code: true
            default_sampling_params: {temperature: 0.4, top_k: 1, seed: 42, detokenize: true}
          - stage_id: 1
            enforce_eager: true
            enable_prefix_caching: false
            input_connectors: {from_stage_0: connector_of_shared_memory}
            default_sampling_params: {temperature: 0.0, seed: 42}
        platforms:
          npu: {stages: [{stage_id: 0, tensor_parallel_size: 2, gpu_memory_utilization: 0.6, devices: "0,1"}]}
        """
    resolution = from_yaml(tmp_path, text)
    assert resolution.stages[0].max_num_seqs == 64
    assert resolution.stages[1].default_sampling_params.seed == 42
    (warning,) = resolution.warnings
    named = warning.removeprefix("without meaning here, not used: ").split(", ")
    assert set(named) == {
        "connectors.connector_of_shared_memory.extra",
        "stages[0].trust_remote_code",
        "stages[1].enforce_eager",
        "stages.1.enable_prefix_caching",
        "stages.0.default_sampling_params.detokenize",
        "stages.1.default_sampling_params.temperature",
    }


def test_the_deploy_file_may_name_the_pipeline_and_the_call_overrules_it(tmp_path: Path) -> None:
    """Fault: a `pipeline:` that is not asked, or that beats the flag."""
    (tmp_path / "tokenizer.json").touch()
    path = tmp_path / "deploy.yaml"
    path.write_text("pipeline: any_text")
    chosen = resolve_omni_config(str(tmp_path), registry=REGISTRY, deploy_config=path)
    overruled = resolve_omni_config(str(tmp_path), registry=REGISTRY, deploy_config=path, pipeline="named_text")
    assert (chosen.pipeline.model_type, chosen.provenance["pipeline"]) == ("any_text", "deploy.yaml")
    assert (overruled.pipeline.model_type, overruled.provenance["pipeline"]) == ("named_text", "cli")
    assert chosen.stages[0].tokenizer_path == str(tmp_path.resolve())


def test_a_model_brings_its_own_deploy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the author's defaults not read, or read on top of the operator's file."""
    monkeypatch.setattr(resolve, "BUILTIN_FOLDER", tmp_path)
    (tmp_path / "sample.yaml").write_text("{threads: 5, voices: {alloy: anna}}")
    (tmp_path / "own.yaml").write_text("{}")
    registry = {"with_deploy": f"{HERE}:AUTHOR_ONLY"}
    brought = resolve_omni_config("with_deploy", registry=registry)
    replaced = resolve_omni_config("with_deploy", registry=registry, deploy_config=tmp_path / "own.yaml")
    assert (brought.stages[0].threads, brought.provenance["stages.0.threads"]) == (5, "sample.yaml")
    assert brought.deploy.voices == {"alloy": "anna"}
    assert (replaced.stages[0].threads, replaced.deploy.voices) == (1, {})


def test_a_misspelt_file_is_blamed_before_the_model(tmp_path: Path) -> None:
    """Fault: "no such model" where `pipeline` was misspelt."""
    path = tmp_path / "deploy.yaml"
    path.write_text("pipline: any_text")
    with pytest.raises(ConfigError, match="did you mean 'pipeline'"):
        resolve_omni_config("/no/such", registry=REGISTRY, deploy_config=path)
    with pytest.raises(ModelNotFoundError):
        resolve_omni_config("/no/such", registry=REGISTRY)


def test_an_unknown_platform_is_refused() -> None:
    """Fault: a misspelt platform that quietly means no section at all."""
    with pytest.raises(ConfigError, match="platform: 'gpu' is not accepted; accepted: cpu, cuda"):
        resolved(platform="gpu")


def test_a_platform_without_a_section_is_refused(tmp_path: Path) -> None:
    """Fault: what was asked for another platform runs on the CPU, and nobody is told."""
    with pytest.raises(ConfigError, match="platform: 'cuda' is not accepted; accepted: cpu, as the deploy file has no"):
        resolved(platform="cuda")
    path = tmp_path / "deploy.yaml"
    path.write_text("{base_config: base.yaml, platforms: {rocm: {threads: 2}}}")
    (tmp_path / "base.yaml").write_text("{platforms: {cuda: {threads: 3}}}")
    assert resolved(platform="cuda", deploy_config=path).stages[0].threads == 3
    with pytest.raises(ConfigError, match="platform: 'xpu' is not accepted; accepted: cpu, cuda, rocm, as"):
        resolved(platform="xpu", deploy_config=path)


def test_voices_of_a_model_without_voices_are_refused(tmp_path: Path) -> None:
    """Fault: an alias that leads to nothing."""
    path = tmp_path / "deploy.yaml"
    path.write_text("voices: {alloy: anna}")
    with pytest.raises(ConfigError, match="accepted: nothing, the model has no voices"):
        resolve_omni_config("large", registry=REGISTRY, deploy_config=path)


def test_a_resolution_is_frozen_and_repeatable() -> None:
    """Fault: a plan that somebody changes after it was shown, or that depends on an earlier call."""
    overrides = {"stage_0_env": {"A": "b"}, "threads": 2}
    first, second = resolved(dict(overrides)), resolved(dict(overrides))
    assert first == second
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.model = "other"  # type: ignore[misc]
