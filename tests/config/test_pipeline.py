"""Pipelines check themselves: every error of a graph, all of them in one message."""

import dataclasses
from typing import Any

import pytest

from omnistage.config.pipeline import ChunkPolicy, Edge, ExecutionType, PipelineConfig, StagePipelineConfig
from omnistage.config.stage import CLIENT
from omnistage.core.errors import ConfigError
from omnistage.core.params import DiffusionParams, GenerationParams, SamplingParams
from omnistage.wire.messages import CLIENT as CLIENT_OF_MESSAGES
from tests.config.samples import HERE, PIPELINE, painter, speaker, writer


def pipeline(*stages: StagePipelineConfig, **more: Any) -> PipelineConfig:
    return PipelineConfig("small", "Small", stages, **more)


def edges(*pairs: tuple[int, int], **more: Any) -> tuple[Edge, ...]:
    return tuple(Edge(source, target, **more) for source, target in pairs)


def test_a_good_pipeline_is_accepted_and_knows_its_edges() -> None:
    """Fault: a check that refuses a fan-out, or edges lost on the way."""
    assert [(edge.source, edge.target) for edge in PIPELINE.edges] == [(0, 1), (0, 2)]
    assert PIPELINE.stage(1).input_sources == (0,)


def test_a_diamond_with_two_entries_is_accepted() -> None:
    """Fault: a join taken for a cycle, or a second entry for an unreachable stage."""
    made = pipeline(
        writer(0, model_stage="a"),
        writer(1, model_stage="b", final_output=False),
        speaker(2, edges=edges((0, 2), (1, 2)), model_stage="c"),
        painter(3, edges=edges((0, 3), (2, 3)), model_stage="d"),
    )
    assert len(made.edges) == 4


@pytest.mark.parametrize(
    ("stages", "error"),
    [
        ((), "no stage"),
        ((writer(0), writer(0, model_stage="other")), "duplicate stage id 0"),
        ((writer(0), writer(1)), "duplicate model_stage 'writer'"),
        ((writer(0), speaker(1, source=5)), "edge 5 -> 1: unknown source 5; accepted: 0, 1"),
        ((writer(0), speaker(1, source=1)), "edge 1 -> 1: a stage cannot be its own source"),
        ((writer(0), speaker(1, edges=edges((0, 2)))), "edge 0 -> 2: stands at stage 1"),
        ((writer(0), speaker(1, edges=edges((0, 1), (0, 1)))), "duplicate edge 0 -> 1"),
        ((speaker(0, edges=edges((1, 0))), speaker(1, model_stage="x")), "no entry stage"),
        ((writer(0, final_output=False),), "no final output"),
        (
            (writer(0), speaker(1, edges=edges((2, 1))), painter(2, edges=edges((1, 2)))),
            "cycle through stages 1, 2; unreachable stages 1, 2: no path from an entry",
        ),
        ((writer(0), speaker(1, final_output=False)), "stages 1 lead to no final output"),
        ((writer(-1),), "stage -1: an id is an integer >= 0"),
        ((writer(0, model_stage=""),), "stage 0: model_stage is empty"),
        ((writer(0, final_output_type="smell"),), "stage 0: final_output_type 'smell' is not accepted; accepted: text"),
        ((writer(0, item_nbytes=-1),), "stage 0: item_nbytes -1 is not accepted"),
        ((writer(0, loader="bad"),), "stage 0: malformed hook 'bad'"),
        ((writer(0, processor=f"{HERE}:absent"),), "stage 0: hook 'tests.config.samples:absent' does not resolve"),
        ((writer(0, package="tests.absent"),), "stage 0: package: there is no package 'tests.absent' with a folder"),
        ((writer(0, package="tests.config.samples"),), "stage 0: package: there is no package 'tests.config.samples'"),
        ((writer(0), speaker(1, bridge=f"{HERE}:absent")), "stage 1: hook 'tests.config.samples:absent'"),
        ((writer(0), speaker(1, edges=edges((0, 1), select="x"))), "edge 0 -> 1: malformed hook 'x'"),
        ((writer(0), speaker(1, edges=edges((0, 1), window=0))), "edge 0 -> 1: window 0 is not accepted"),
        ((writer(0), speaker(1, edges=edges((0, 1), chunk=ChunkPolicy(first=0)))), "edge 0 -> 1: chunk.first 0"),
        ((writer(0), speaker(1, edges=edges((0, 1), chunk=ChunkPolicy(later=0)))), "edge 0 -> 1: chunk.later 0"),
        ((writer(0), speaker(1, edges=edges((0, 1), item_nbytes=-1))), "edge 0 -> 1: item_nbytes -1"),
        ((writer(0, sampling_constraints={"top_q": 1}),), "stage 0: sampling_constraints.top_q: unknown field"),
    ],
)
def test_an_error_of_the_graph_is_named(stages: tuple[StagePipelineConfig, ...], error: str) -> None:
    """Fault: a graph on which a request would hang, or a stage that cannot be built, accepted at its making."""
    with pytest.raises(ConfigError) as caught:
        pipeline(*stages)
    assert error in caught.value.message


def test_what_is_made_unasked_can_be_made() -> None:
    """Fault: whoever names no modality is refused, or gets nothing."""
    with pytest.raises(ConfigError, match="default_modalities: 'image' is not accepted; accepted: text, audio"):
        pipeline(writer(0), speaker(1), default_modalities=("text", "image"))


@pytest.mark.parametrize("field", ["hf_config_predicate", "locate", "fetch"])
def test_the_hooks_of_the_pipeline_itself_are_checked(field: str) -> None:
    """Fault: a misspelt `locate` found only when a server starts."""
    changes: dict[str, Any] = {field: f"{HERE}:absent"}
    with pytest.raises(ConfigError, match="does not resolve"):
        dataclasses.replace(PIPELINE, **changes)


def test_an_alias_must_name_a_stage() -> None:
    """Fault: an alias for nothing, which a command line would take in silence."""
    with pytest.raises(ConfigError, match=r"stage_cli_aliases\['ghost'\]: there is no stage 9; accepted: 0"):
        pipeline(writer(0), stage_cli_aliases={"ghost": 9})


def test_a_restriction_names_paths() -> None:
    """Fault: a misspelt restriction shuts a model out everywhere."""
    with pytest.raises(ConfigError, match=r"endpoint_restrictions: 'chat' is not accepted"):
        pipeline(writer(0), endpoint_restrictions=("chat",))


@pytest.mark.parametrize("reads", [(), ("smell",), ("text", "latent")])
def test_a_pipeline_reads_what_callers_can_send(reads: tuple[str, ...]) -> None:
    """Fault: a misspelt kind of input makes a model that silently refuses it."""
    with pytest.raises(ConfigError, match=r"reads: .* accepted: one or more of text, image, mask, audio, video"):
        pipeline(writer(0), reads=reads)


def test_all_errors_come_in_one_message() -> None:
    """Fault: an author who repairs one error per run."""
    with pytest.raises(ConfigError) as caught:
        pipeline(writer(0, loader="bad", final_output=False), speaker(1, source=7, final_output=False))
    message = caught.value.message
    assert message.startswith("pipeline 'small': ")
    assert [part in message for part in ("malformed hook 'bad'", "unknown source 7", "no final output")] == [True] * 3


def test_each_kind_has_its_parameters() -> None:
    """Fault: a kind whose callers give it another kind's parameters."""
    assert [kind.params for kind in ExecutionType] == [SamplingParams, GenerationParams, DiffusionParams]


def test_the_caller_has_one_number() -> None:
    """Fault: config and messages that disagree about where the caller is."""
    assert CLIENT == CLIENT_OF_MESSAGES
