"""Which pipeline a model is: the order of the ways, and an error that lists all that was looked at."""

import json
from pathlib import Path
from typing import Any

import pytest

from omnistage.config.detect import detect, look_into, read_pipeline
from omnistage.config.layers import Given
from omnistage.core.errors import ConfigError, ModelNotFoundError
from tests.config import samples
from tests.config.samples import HERE, REGISTRY


def model(folder: Path, config: Any = None, index: Any = None, modular: Any = None, *, tokenizer: bool = True) -> str:
    """A model's folder with these descriptions."""
    for name, content in (("config.json", config), ("model_index.json", index), ("modular_model_index.json", modular)):
        if content is not None:
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    if tokenizer:
        (folder / "tokenizer.json").write_text("{}")
    return str(folder)


def found(model_name: str, named: str | None = None) -> tuple[str, str]:
    detected = detect(model_name, REGISTRY, None if named is None else Given(named, "cli", "pipeline"))
    return detected.pipeline.model_type, detected.reason


def test_a_named_pipeline_beats_everything(tmp_path: Path) -> None:
    """Fault: detection that overrules the operator."""
    path = model(tmp_path, {"architectures": ["OneForText"]})
    assert found(path, "sample") == ("sample", "cli")


def test_a_built_in_name_beats_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the same command that runs another model in another working directory."""
    (tmp_path / "built_in").mkdir()
    monkeypatch.chdir(tmp_path)
    detected = detect("built_in", REGISTRY, None)
    assert detected.model_path == Path(samples.__file__).parent
    named = detect("built_in", REGISTRY, Given("built_in", "deploy.yaml", "deploy.yaml pipeline"))
    assert named.model_path == detected.model_path


@pytest.mark.parametrize(
    ("config", "index", "modular", "expected"),
    [
        ({"architectures": ["OneForText"]}, None, None, ("named_text", "config.json architectures")),
        ({"architectures": ["OtherForText"]}, None, None, ("any_text", "config.json architectures, by pattern")),
        ({"model_type": "sample", "architectures": ["OtherForText"]}, None, None, ("sample", "config.json model_type")),
        ({"model_type": "large", "size": "large"}, None, None, ("large", "config.json model_type")),
        (
            {"model_type": "large", "architectures": ["AForText"]},
            None,
            None,
            ("any_text", "config.json architectures, by pattern"),
        ),
        (None, {"_class_name": "PicturePipeline"}, None, ("pictures", "model index class")),
        (None, None, {"_class_name": "PicturePipeline"}, ("pictures", "model index class")),
        ({"architectures": ["AForText"]}, {"_class_name": "PicturePipeline"}, None, ("pictures", "model index class")),
        (None, {"_class_name": "OtherPipeline"}, None, ("any_pictures", "model index class, by pattern")),
        (
            {"architectures": ["AForText"]},
            {"_class_name": "OtherPipeline"},
            None,
            ("any_text", "config.json architectures, by pattern"),
        ),
    ],
)
def test_a_folder_is_known_by_what_it_says_of_itself(
    tmp_path: Path, config: Any, index: Any, modular: Any, expected: tuple[str, str]
) -> None:
    """Fault: a pattern that beats an exact name, or counts for nothing, a predicate that is not asked, an index nobody reads."""
    path = model(tmp_path, config, index, modular)
    assert found(path) == expected
    assert detect(path, REGISTRY, None).model_path == tmp_path.resolve()


@pytest.mark.parametrize(
    ("content", "looked"),
    [
        ({}, ["config.json: missing", "model_index.json: missing", "modular_model_index.json: missing"]),
        ({"config": "{"}, ["config.json: broken JSON ("]),
        ({"config": "[1]"}, ["config.json: broken JSON ("]),
        (
            {"config": {"model_type": "new", "architectures": ["New"]}},
            ["config.json: no pipeline takes model_type 'new', architectures ['New']"],
        ),
        ({"config": {"architectures": "New"}}, ["config.json: no pipeline takes model_type None, architectures 'New'"]),
        ({"index": {"_class_name": "Other"}}, ["model_index.json: no pipeline takes the class 'Other'"]),
        ({"index": "{", "modular": {"_class_name": "Other"}}, ["model_index.json: broken JSON", "the class 'Other'"]),
    ],
)
def test_an_unknown_folder_says_what_was_looked_at(tmp_path: Path, content: dict[str, Any], looked: list[str]) -> None:
    """Fault: "unknown model" and nothing else."""
    with pytest.raises(ModelNotFoundError) as caught:
        found(model(tmp_path, **content))
    message = caught.value.message
    assert [part for part in ["built-in names: built_in", str(tmp_path), *looked] if part not in message] == []
    assert "\n" not in message


def test_a_folder_that_is_not_there_and_one_that_is_a_file(tmp_path: Path) -> None:
    """Fault: an exception of the file system in the place of a line."""
    assert look_into(tmp_path / "absent").looked == (f"{tmp_path / 'absent'}: no such folder",)
    file = tmp_path / "file"
    file.touch()
    assert look_into(file).looked == (f"{file}: no folder",)
    (tmp_path / "config.json").mkdir()
    assert look_into(tmp_path).looked[0] == f"{tmp_path / 'config.json'}: cannot be read (Is a directory)"


def test_a_near_built_in_name_is_suggested() -> None:
    """Fault: a typo that sends the user to read about folders."""
    with pytest.raises(ModelNotFoundError, match="no pipeline for model 'buildin'; did you mean 'built_in'"):
        found("buildin")


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    """Fault: a text pipeline that starts without its tokenizer and fails in the worker."""
    path = model(tmp_path, {"architectures": ["AForText"]}, tokenizer=False)
    with pytest.raises(
        ModelNotFoundError,
        match=r"stage 'writer' of pipeline 'any_text' needs a tokenizer; .*/tokenizer\.json is missing",
    ):
        found(path)


@pytest.mark.parametrize(
    ("name", "named", "words"),
    [
        ("any_text", None, "a folder is to be given in its place"),
        ("/no/such", "any_text", "there is no folder '/no/such'"),
        ("pictures", None, "a folder is to be given in its place"),
    ],
)
def test_a_family_without_a_folder_is_no_model(name: str, named: str | None, words: str) -> None:
    """Fault: a worker that looks for weights in the folder ""."""
    with pytest.raises(ModelNotFoundError, match=words):
        found(name, named)


def test_a_pipeline_without_files_needs_no_folder() -> None:
    """Fault: a folder asked of a pipeline that has nothing to read."""
    assert detect("sample", REGISTRY, None).model_path is None


def test_unknown_and_broken_entries_of_the_registry_are_config_errors() -> None:
    """Fault: an attribute error far from the registry's line."""
    with pytest.raises(ConfigError, match="cli: there is no pipeline 'sampel'; did you mean 'sample'"):
        found("x", "sampel")
    with pytest.raises(ConfigError, match="is no PipelineConfig"):
        read_pipeline({"a": f"{HERE}:NOT_A_PIPELINE"}, "a", "registry")
    with pytest.raises(ConfigError, match="cannot be called"):
        detect("a", {"a": f"{HERE}:WRONG_LOCATE"}, None)


def test_a_vocabulary_and_merges_are_a_tokenizer_too(tmp_path: Path) -> None:
    """Fault: published folders without tokenizer.json that are refused before they are looked at."""
    path = model(tmp_path, {"architectures": ["AForText"]}, tokenizer=False)
    (tmp_path / "vocab.json").touch()
    with pytest.raises(ModelNotFoundError, match=r"and so are vocab\.json and merges\.txt"):
        found(path)
    (tmp_path / "merges.txt").touch()
    assert found(path)[0] == "any_text"


@pytest.mark.parametrize("named", [None, "speaking"])
def test_voices_of_a_checkpoint_replace_those_of_the_family(tmp_path: Path, named: str | None) -> None:
    """Fault: a voice that the weights have and the server refuses."""
    path = model(tmp_path, {"architectures": ["ASpeaker"], "voices": ["low", "high"]})
    detected = detect(path, REGISTRY, None if named is None else Given(named, "cli", "pipeline"))
    assert detected.pipeline.voices == ("low", "high")
    assert read_pipeline(REGISTRY, "speaking", "registry").voices == ("middle",)
