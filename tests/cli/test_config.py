"""`omnistage config`: what would run and why, and everything that is wrong."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from omnistage.cli import config
from omnistage.config.reference import reference_page
from tests.config.samples import REGISTRY


@pytest.fixture(autouse=True)
def _samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "REGISTRY", REGISTRY)


def run(*args: str) -> Result:
    return CliRunner().invoke(config.app, list(args))


def test_show_prints_every_key_its_value_and_its_source(tmp_path: Path) -> None:
    """Fault: a table without the source, or without the file's and the flag's values."""
    path = tmp_path / "deploy.yaml"
    path.write_text("{threads: 2, trust_remote_code: true, platforms: {cuda: {lookahead: 5}}}")
    result = run("show", "sample", "--deploy-config", str(path), "--platform", "cuda", "--stage-0-max-num-seqs", "4")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert ["stages.0.max_num_seqs", "4", "cli"] in lines
    assert ["stages.1.threads", "2", "deploy.yaml"] in lines
    assert ["stages.1.lookahead", "5", "platform", "cuda", "(deploy.yaml)"] in lines
    assert ["async_chunk", "true", "default"] in lines
    assert result.stderr == "warning: without meaning here, not used: trust_remote_code\n"


def test_show_as_json_can_be_read_by_programs() -> None:
    """Fault: values turned into texts, or a warning among the JSON."""
    result = run("show", "sample", "--json", "--no-async-chunk", "--trust-remote-code")
    shown = json.loads(result.stdout)
    assert shown["keys"]["async_chunk"] == {"value": False, "source": "cli"}
    assert shown["keys"]["stages.0.default_sampling_params.stop_token_ids"]["value"] == [7]
    assert (shown["model"], shown["model_path"]) == ("sample", None)
    assert [process["name"] for process in shown["processes"]] == ["writer", "speaker", "painter"]
    assert shown["warnings"] == ["without meaning here, not used: trust_remote_code"]


def test_show_of_a_folder_names_the_folder(tmp_path: Path) -> None:
    """Fault: a plan that does not say where the weights are read."""
    (tmp_path / "tokenizer.json").touch()
    shown = json.loads(run("show", str(tmp_path), "--pipeline", "any_text", "--json").stdout)
    assert shown["model_path"] == str(tmp_path.resolve())


def test_check_says_what_the_configuration_takes() -> None:
    """Fault: memory that nobody sees before it is taken."""
    result = run("check", "sample", "--kv-cache-bytes", str(2**20), "--max-input-nbytes", str(2**20))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "stage writer: 1 replica(s), each KV cache 1.0 MiB, inputs at most 10.0 MiB",
        "stage speaker: 1 replica(s), each inputs at most 10.0 MiB",
        "stage painter: 1 replica(s), each inputs at most 10.0 MiB",
        "process writer: stages 0, 1 replica(s), each arena 29.3 KiB",
        "process speaker: stages 1, 1 replica(s), each arena 19.5 KiB",
        "process painter: stages 2, 1 replica(s), each arena 0.0 KiB",
        "ok",
    ]


def test_check_prints_every_problem_on_a_line_and_fails(tmp_path: Path) -> None:
    """Fault: exit code 0, or the first problem alone."""
    path = tmp_path / "deploy.yaml"
    path.write_text("thraeds: 1")
    result = run("check", "sample", "--deploy-config", str(path), "--stage-9-threads", "1")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "error: deploy.yaml thraeds: unknown key; did you mean 'threads'?",
        "error: stage_9_threads: there is no stage 9; accepted: 0, 1, 2",
    ]
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["/no/such"], "error: no pipeline for model '/no/such'"),
        (["sample", "--thread", "1"], "error: --thread: unknown flag; did you mean '--threads'?"),
        (["--threads", "1", "sample"], "error: --threads: the model stands before the overrides"),
    ],
)
def test_an_error_is_one_line_without_a_traceback(args: list[str], error: str) -> None:
    """Fault: a traceback for a typo."""
    result = run("show", *args)
    assert (result.exit_code, result.stderr.startswith(error), result.stderr.count("\n")) == (1, True, 1)


def test_reference_prints_the_page() -> None:
    """Fault: a page on the command line that is not the documented one."""
    assert run("reference").stdout == reference_page()


def test_diff_shows_what_another_file_changes(tmp_path: Path) -> None:
    """Fault: a key that changed and is not shown, or one that did not change and is."""
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text("stages: [{stage_id: 0, threads: 2, env: {A: b}}]")
    new.write_text("{async_chunk: false, stages: [{stage_id: 0, threads: 3}]}")
    result = run("diff", "sample", str(old), str(new), "--stage-1-threads", "4")
    assert result.exit_code == 0
    assert sorted(result.stdout.splitlines()) == [
        "async_chunk: true -> false",
        "stages.0.env.A: b -> null",
        "stages.0.threads: 2 -> 3",
    ]
    assert run("diff", "sample", str(old), str(old)).stdout == ""
