"""The table of keys: one home for defaults, names that mean what they say, refusals with a reason."""

import dataclasses

import msgspec
import pytest

from omnistage.config.keys import KEYS, PIPELINE_KEYS, STRUCT_OF, WITHOUT_MEANING, Scope, split_stage_override
from omnistage.config.pipeline import ExecutionType
from omnistage.config.resolution import DeployConfig
from omnistage.core.errors import ConfigError

FROM_THE_PIPELINE = {
    "stage_id", "model_stage", "model_path", "loader", "processor", "bridge", "input_sources", "outputs", "final_output_type",
    "tokenizer_path", "extras", "input_window",
}  # fmt: skip


@pytest.mark.parametrize("kind", list(ExecutionType))
def test_every_field_of_a_typed_stage_is_a_key_or_comes_from_the_pipeline(kind: ExecutionType) -> None:
    """Fault: a field that nobody can set, or that the table gives to another kind."""
    fields = {field.name for field in msgspec.structs.fields(STRUCT_OF[kind])} - FROM_THE_PIPELINE
    assert fields == {key.name for key in KEYS.values() if kind in key.kinds and key.name in fields}


def test_every_field_of_the_deploy_config_is_a_key() -> None:
    """Fault: a value of the whole pipeline without a key, or a key that ends nowhere."""
    fields = {field.name for field in dataclasses.fields(DeployConfig)} - {"platform", "connectors"}
    assert fields == {key.name for key in PIPELINE_KEYS if key.scope is Scope.PIPELINE}


def test_every_default_would_be_accepted() -> None:
    """Fault: a default that an operator who writes it down is refused for."""
    for key in KEYS.values():
        if key.default is not None:
            key.check(key.name, key.default)
            key.check_winner(key.name, key.default)
    assert not WITHOUT_MEANING & KEYS.keys()


def test_a_known_key_of_an_absent_feature_is_refused_with_its_reason() -> None:
    """Fault: an option that does nothing."""
    with pytest.raises(ConfigError) as caught:
        KEYS["tensor_parallel_size"].check_winner("tensor_parallel_size", 2)
    reason = "tensor_parallel_size: 2 is not accepted; accepted: 1 (one rank per replica in this version)"
    assert caught.value.message == reason


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("stage_0_max_num_seqs", ("0", "max_num_seqs")),
        ("stage_0_first_step_timeout_s", ("0", "first_step_timeout_s")),
        ("stage_0_step_timeout_s", ("0", "step_timeout_s")),
        ("stage_big_voice_threads", ("big_voice", "threads")),
        ("stage_0_max_num_seqz", ("0", "max_num_seqz")),
        ("stage_threads", None),
        ("max_num_seqs", None),
    ],
)
def test_a_name_for_one_stage_is_split(name: str, expected: tuple[str, str] | None) -> None:
    """Fault: a key that is the end of another one steals its name."""
    assert split_stage_override(name) == expected


@pytest.mark.parametrize(("name", "words"), [("tensor_parallel_size", "1 ("), ("quantization", "no value (")])
def test_what_a_refused_key_accepts_is_said_as_yaml_would(name: str, words: str) -> None:
    """Fault: Python's words in a message about YAML."""
    assert KEYS[name].accepted.startswith(words)
