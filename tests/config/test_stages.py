"""Typed stages and edges: complete, from the author's pipeline, the operator's values and the model's folder."""

from pathlib import Path
from typing import Any

import pytest

from omnistage.config.pipeline import ChunkPolicy, PipelineConfig
from omnistage.config.problems import problems_of
from omnistage.config.resolution import OmniConfigResolution
from omnistage.config.resolve import resolve_omni_config
from omnistage.config.stage import CLIENT, ARStageConfig, DiffusionStageConfig, GenerationStageConfig, OutputEdge
from omnistage.core.errors import ConfigError
from omnistage.core.params import GenerationParams, SamplingParams
from tests.config import samples
from tests.config.samples import HERE, REGISTRY, writer

IN_FOLDERS = PipelineConfig(
    "in_folders",
    "InFolders",
    (
        writer(model_subdir="llm", tokenizer_subdir="words"),
        writer(1, model_stage="second", model_subdir="llm", owns_tokenizer=True),
    ),
)


def resolved(overrides: dict[str, Any] | None = None, model: str = "sample", **more: Any) -> OmniConfigResolution:
    return resolve_omni_config(model, overrides, registry=REGISTRY, **more)


def test_each_kind_has_its_own_type() -> None:
    """Fault: a stage built from another kind's configuration."""
    kinds = [type(stage) for stage in resolved().stages]
    assert kinds == [ARStageConfig, GenerationStageConfig, DiffusionStageConfig]


def test_what_the_author_wrote_is_in_the_stage() -> None:
    """Fault: a hook, an input or an output lost between pipeline and worker."""
    writes, speaks, paints = resolved().stages
    assert writes.outputs == (
        OutputEdge(target=1, unit="frames", first=4, later=25, item_nbytes=1000),
        OutputEdge(target=2, streaming=False),
        OutputEdge(target=CLIENT),
    )
    assert (speaks.input_sources, speaks.bridge, speaks.loader) == ((0,), f"{HERE}:bridge", f"{HERE}:load")
    assert (speaks.extras, speaks.final_output_type, speaks.process) == ({"rate": 24000}, "audio", "speaker")
    assert (writes.input_window, speaks.input_window, paints.input_window) == (4, 3, 4)
    assert (writes.model_path, writes.tokenizer_path) == ("", None)


def test_an_operator_changes_windows_and_chunks(tmp_path: Path) -> None:
    """Fault: an override that reaches the edge and not the sender, or an arena sized for the old chunks."""
    path = tmp_path / "deploy.yaml"
    path.write_text("edges: [{source: 0, target: 1, window: 7, chunk: {later: 50, adaptive: false}}]")
    resolution = resolved(deploy_config=path)
    edge = resolution.edges[0]
    assert (edge.window, edge.chunk) == (7, ChunkPolicy("frames", first=4, later=50, adaptive=False))
    assert edge.item_nbytes == 2000
    sent = OutputEdge(target=1, unit="frames", first=4, later=50, adaptive=False, item_nbytes=2000)
    assert resolution.stages[0].outputs[0] == sent
    assert resolution.stages[1].input_window == 7
    assert resolution.provenance["edges.0->1.window"] == "deploy.yaml edges[0]"
    assert resolution.provenance["edges.0->1.chunk.first"] == "pipeline"


def test_chunks_of_an_edge_that_hands_over_whole_are_refused() -> None:
    """Fault: an option that does nothing."""
    edges = [{"source": 0, "target": 2, "chunk": {"first": 2}}]
    with pytest.raises(ConfigError, match=r"edges\.0->2\.chunk: this edge hands over whole items"):
        resolved({"edges": edges})


def test_what_the_pipeline_fixes_wins_and_is_noted() -> None:
    """Fault: a stop token lost to an operator's or caller's default, or won without a word."""
    resolution = resolved({"stage_0_default_sampling_params": {"stop_token_ids": [1], "temperature": 0}})
    assert resolution.stages[0].default_sampling_params == SamplingParams(temperature=0, stop_token_ids=(7,))
    assert resolution.warnings == (
        "stages.0.default_sampling_params.stop_token_ids: the pipeline fixes [7]; [1] is not used",
    )
    assert resolution.provenance["stages.0.default_sampling_params.stop_token_ids"] == "pipeline (fixed)"
    assert resolved({"stage_0_default_sampling_params": {"stop_token_ids": [7]}}).warnings == ()


def test_parameters_are_those_of_the_kind() -> None:
    """Fault: a voice for a writer, a number out of range, found when the first request comes."""
    voiced = resolved({"stage_1_default_sampling_params": {"voice": "anna", "speed": 1}})
    assert voiced.stages[1].default_sampling_params == GenerationParams(voice="anna", speed=1.0)
    with pytest.raises(ConfigError) as caught:
        resolved({"stage_0_default_sampling_params": {"voice": "a"}, "stage_2_default_sampling_params": {"height": 0}})
    wrong_kind, wrong_value = problems_of(caught.value)
    assert wrong_kind.startswith("stages.0.default_sampling_params.voice: unknown field")
    assert wrong_value.startswith("stages.2.default_sampling_params.height: 0 is not accepted")


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ({"stage_0_max_num_seqs": 600}, "max_num_seqs (600)"),
        ({"enable_chunked_prefill": False}, "max_model_len (2048) as enable_chunked_prefill is false"),
    ],
)
def test_a_step_has_room_for_what_must_go_into_it(overrides: dict[str, Any], error: str) -> None:
    """Fault: a request that can never be scheduled."""
    with pytest.raises(ConfigError) as caught:
        resolved(overrides)
    refused = "stages.0.max_num_batched_tokens: 512 is not accepted; accepted: at least "
    assert caught.value.message == refused + error


def test_stages_lie_in_the_folders_the_author_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a stage that reads the folder of another one; a missing folder found in the worker."""
    monkeypatch.setattr(samples, "IN_FOLDERS", IN_FOLDERS, raising=False)
    registry = {"in_folders": f"{HERE}:IN_FOLDERS"}
    (tmp_path / "llm").mkdir()
    (tmp_path / "llm" / "tokenizer.json").touch()
    with pytest.raises(ConfigError, match=r"stages\.0: tokenizer_subdir: there is no folder .*words"):
        resolve_omni_config(str(tmp_path), registry=registry, pipeline="in_folders")
    (tmp_path / "words").mkdir()
    first, second = resolve_omni_config(str(tmp_path), registry=registry, pipeline="in_folders").stages
    folder = tmp_path.resolve()
    assert (first.model_path, first.tokenizer_path) == (str(folder / "llm"), str(folder / "words"))
    assert (second.model_path, second.tokenizer_path) == (str(folder / "llm"), str(folder / "llm"))


def test_files_that_come_with_a_package_are_found_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fault: a stage whose weights are installed looks for them in the model's folder."""
    packaged = PipelineConfig(
        "packaged",
        "Packaged",
        (writer(), writer(1, model_stage="second", package="tests.config", owns_tokenizer=True, model_subdir=".")),
    )
    monkeypatch.setattr(samples, "PACKAGED", packaged, raising=False)
    first, second = resolve_omni_config(str(tmp_path), registry={"p": f"{HERE}:PACKAGED"}, pipeline="p").stages
    assert first.model_path == str(tmp_path.resolve())
    assert (second.model_path, second.tokenizer_path) == (str(Path(__file__).parent), str(Path(__file__).parent))


def test_integers_of_seconds_become_floats() -> None:
    """Fault: two spellings of one plan that are not equal."""
    assert repr(resolved({"step_timeout_s": 5}).stages[0].step_timeout_s) == "5.0"
