"""Deploy files: strict, with near names for misspelt keys; bases and platforms as layers, the nearest file strongest."""

from pathlib import Path
from typing import Any

import pytest

from omnistage.config import deploy
from omnistage.config.deploy import DeployFiles, read_deploy
from omnistage.config.problems import ProblemsState, problems_of
from omnistage.core.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def write(folder: Path, text: str, name: str = "deploy.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def read(folder: Path, text: str, platform: str = "cpu") -> DeployFiles:
    """The file's layers; any problem is raised."""
    problems = ProblemsState()
    files = read_deploy(write(folder, text), platform, problems)
    problems.raise_if_any()
    return files


def values(files: DeployFiles) -> list[dict[str, Any]]:
    return [{path: given.value for path, given in layer.items()} for layer in files.layers]


def errors(folder: Path, text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return problems_of(caught.value)


def test_a_file_becomes_paths_with_their_sources(folder: Path) -> None:
    """Fault: a value under another path, or a source that does not lead to the line."""
    files = read(
        folder,
        """
        pipeline: sample
        async_chunk: false
        request_timeout_s: null
        voices: {alloy: anna}
        stages:
          - {stage_id: 1, threads: 2, env: {A: b}}
        edges:
          - {source: 0, target: 1, window: 2, chunk: {first: 1, adaptive: false}}
        connectors:
          local: {kind: shm}
        """,
    )
    assert values(files) == [
        {
            "async_chunk": False,
            "voices.alloy": "anna",
            "stages.1.threads": 2,
            "stages.1.env.A": "b",
            "edges.0->1.window": 2,
            "edges.0->1.chunk.first": 1,
            "edges.0->1.chunk.adaptive": False,
            "connectors.local": "shm",
        }
    ]
    sources = {path: (given.source, given.where) for path, given in files.layers[0].items()}
    assert sources["async_chunk"] == ("deploy.yaml", "deploy.yaml async_chunk")
    assert sources["stages.1.threads"] == ("deploy.yaml stages[0]", "deploy.yaml stages[0].threads")
    assert sources["edges.0->1.window"] == ("deploy.yaml edges[0]", "deploy.yaml edges[0].window")
    assert files.pipeline is not None
    assert (files.pipeline.value, files.pipeline.source) == ("sample", "deploy.yaml")


def test_an_empty_file_says_nothing(folder: Path) -> None:
    """Fault: an empty file taken for a broken one."""
    assert values(read(folder, "# nothing\n")) == [{}]


def test_a_platform_section_is_a_stronger_layer_of_its_own(folder: Path) -> None:
    """Fault: the section of another platform applied, or this one's as weak as the file."""
    text = """
        threads: 1
        stages: []
        platforms:
          cpu:
            threads: 2
            stages: [{stage_id: 0, threads: 3}]
          cuda: {threads: 4}
          npu:
        """
    files = read(folder, text)
    assert values(files) == [{"threads": 2, "stages.0.threads": 3}, {"threads": 1}]
    assert files.layers[0]["threads"].source == "platform cpu (deploy.yaml)"
    assert files.layers[0]["stages.0.threads"].source == "platform cpu (deploy.yaml stages[0])"
    assert files.layers[0]["stages.0.threads"].where == "deploy.yaml platforms.cpu.stages[0].threads"
    assert values(read(folder, text, "cuda")) == [{"threads": 4}, {"threads": 1}]


def test_bases_are_weaker_layers_and_relative_to_their_file(folder: Path) -> None:
    """Fault: a base looked for in the working directory, or stronger than the file that names it."""
    (folder / "inner").mkdir()
    write(folder, "{threads: 3, pipeline: three}", "c.yaml")
    write(folder / "inner", "{threads: 2, base_config: ../c.yaml, pipeline: two}", "b.yaml")
    files = read(folder, "{threads: 1, base_config: inner/b.yaml}")
    assert [layer["threads"] for layer in values(files)] == [1, 2, 3]
    assert files.pipeline is not None
    assert files.pipeline.value == "two"


def test_a_base_may_be_one_that_the_package_brings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a user's file that cannot build on a model's own."""
    (folder / "builtin").mkdir()
    write(folder / "builtin", "{threads: 7}", "sample.yaml")
    monkeypatch.setattr(deploy, "BUILTIN_FOLDER", folder / "builtin")
    assert values(read(folder, "base_config: sample.yaml")) == [{}, {"threads": 7}]


def test_bases_that_go_round_are_an_error(folder: Path) -> None:
    """Fault: an endless loop."""
    write(folder, "base_config: deploy.yaml", "b.yaml")
    assert errors(folder, "base_config: b.yaml") == ("base_config goes round: deploy.yaml -> b.yaml -> deploy.yaml",)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("thraeds: 2", "deploy.yaml thraeds: unknown key; did you mean 'threads'?"),
        ("stagse: []", "deploy.yaml stagse: unknown key; did you mean 'stages'?"),
        ("platform: {}", "deploy.yaml platform: unknown key; did you mean 'platforms'?"),
        ("1: 2", "deploy.yaml 1: unknown key; accepted: "),
        ("process: a", "deploy.yaml process: this key stands in an entry of stages"),
        ("stages: 3", "deploy.yaml stages: 3 is not accepted; accepted: a list of mappings"),
        ("stages: [3]", "deploy.yaml stages[0]: 3 is not accepted; accepted: a mapping with stage_id"),
        ("stages: [{threads: 1}]", "deploy.yaml stages[0]: {'threads': 1} is not accepted"),
        ("stages: [{stage_id: true}]", "deploy.yaml stages[0]: {'stage_id': True} is not accepted"),
        ("stages: [{stage_id: 0, thread: 1}]", "deploy.yaml stages[0].thread: unknown key; did you mean 'threads'?"),
        (
            "stages: [{stage_id: 0, inline: true}]",
            "deploy.yaml stages[0].inline: this key is for the whole pipeline, not for one stage",
        ),
        ("threads: 0", "deploy.yaml threads: 0 is not accepted; accepted: an integer in [1, 1024]"),
        (
            "stages: [{stage_id: 0, env: {A: 1}}]",
            "deploy.yaml stages[0].env: {'A': 1} is not accepted; accepted: a mapping",
        ),
        ("platforms: {cpu: {stages: [{stage_id: 0, threads: x}]}}", "deploy.yaml platforms.cpu.stages[0].threads: 'x'"),
        ("platforms: {cuda: {thread: 1}}", "deploy.yaml platforms.cuda.thread: unknown key"),
        ("platforms: {cpu: {base_config: x}}", "deploy.yaml platforms.cpu.base_config: unknown key"),
        ("platforms: {gpu: {}}", "deploy.yaml platforms: 'gpu' is not accepted; accepted: cpu, cuda, rocm, xpu, npu"),
        ("platforms: {cpu: 3}", "deploy.yaml platforms.cpu: 3 is not accepted; accepted: a mapping"),
        ("platforms: 3", "deploy.yaml platforms: 3 is not accepted; accepted: a mapping of names"),
        ("connectors: {1: {kind: shm}}", "deploy.yaml connectors: {1: {'kind': 'shm'}} is not accepted"),
        ("connectors: {a: shm}", "deploy.yaml connectors.a: 'shm' is not accepted; accepted: a mapping with kind"),
        ("connectors: {a: {kind: 3}}", "deploy.yaml connectors.a.kind: 3 is not accepted; accepted: shm, inproc, tcp"),
        ("connectors: {a: {kind: shm, extr: 1}}", "deploy.yaml connectors.a.extr: unknown key; did you mean 'extra'?"),
        ("edges: [3]", "deploy.yaml edges[0]: 3 is not accepted; accepted: a mapping with source and target"),
        ("edges: [{source: 0}]", "deploy.yaml edges[0]: {'source': 0} is not accepted"),
        (
            "edges: [{source: 0, target: 1, windw: 1}]",
            "deploy.yaml edges[0].windw: unknown key; did you mean 'window'?",
        ),
        ("edges: [{source: 0, target: 1, window: 0}]", "deploy.yaml edges[0].window: 0 is not accepted"),
        ("edges: [{source: 0, target: 1, chunk: {later: x}}]", "deploy.yaml edges[0].chunk.later: 'x' is not accepted"),
        ("edges: [{source: 0, target: 1, chunk: 3}]", "deploy.yaml edges[0].chunk: unknown key"),
        ("pipeline: 3", "deploy.yaml pipeline: 3 is not accepted; accepted: the name of a pipeline"),
        ("base_config: 3", "deploy.yaml base_config: 3 is not accepted; accepted: a path relative to this file"),
        ("base_config: absent.yaml", "absent.yaml cannot be read: No such file or directory"),
        ("a: [", "deploy.yaml is no YAML: "),
        ("? [1, 2]\n: 3", "deploy.yaml is no YAML: "),
        ("- a", "'list' is not accepted; accepted: a mapping of keys at the top"),
        ("threads: 1\nthreads: 2", "deploy.yaml: the key 'threads' stands twice, again in line 2"),
        ("stages:\n- stage_id: 0\n  threads: 1\n  threads: 2", "the key 'threads' stands twice, again in line 4"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(folder: Path, text: str, error: str) -> None:
    """Fault: a misspelt, misplaced or ill-typed key accepted in silence."""
    found = errors(folder, text)
    assert len(found) == 1
    assert error in found[0]


def test_all_problems_of_a_file_are_found_at_once(folder: Path) -> None:
    """Fault: one repair per run."""
    assert len(errors(folder, "thraeds: 1\ninline: 3\nplatforms: {gpu: {}}\nstages: [{}]")) == 4


def test_a_null_edge_value_was_not_given(folder: Path) -> None:
    """Fault: null taken for a value."""
    assert values(read(folder, "edges: [{source: 0, target: 1, window: null}]")) == [{}]


def test_a_file_that_is_no_text_says_so(folder: Path) -> None:
    """Fault: a decoding error that does not name the file."""
    path = folder / "deploy.yaml"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match=r"deploy\.yaml cannot be read: it is no UTF-8 text"):
        read_deploy(path, "cpu", ProblemsState())


def test_an_anchor_used_twice_is_no_duplicate(folder: Path) -> None:
    """Fault: shared parts of a file taken for a key that stands twice, or walked for ever."""
    text = "stages:\n- &a {stage_id: 0, env: &e {A: b}}\n- {stage_id: 1, env: *e}\n"
    assert values(read(folder, text)) == [{"stages.0.env.A": "b", "stages.1.env.A": "b"}]


def test_keys_of_other_engines_are_gathered(folder: Path) -> None:
    """Fault: a foreign deploy file that does not load, or whose idle keys go unnoticed."""
    files = read(
        folder,
        """
        trust_remote_code: true
        connectors:
          shared: {name: SharedMemoryConnector, extra: {codec_chunk_frames: 25}}
        stages:
          - {stage_id: 0, enforce_eager: true, moe_backend: x}
        platforms:
          npu:
            stages: [{stage_id: 0, custom_ops: []}]
        """,
    )
    assert set(files.ignored) == {
        "trust_remote_code", "connectors.shared.extra", "stages[0].enforce_eager", "stages[0].moe_backend",
        "stages[0].custom_ops",
    }  # fmt: skip
    assert values(files) == [{"connectors.shared": "shm"}]
