"""The part of a pipeline a request needs, and the plan that is made from a resolved configuration."""

from omnistage.config.pipeline import Edge
from omnistage.config.stage import ARStageConfig, GenerationStageConfig
from omnistage.orchestrator.plan import CANCEL_MARGIN_S, EdgePlan, Limits, OrchestratorConfig
from omnistage.wire.messages import CLIENT
from tests.orchestrator.traces import config, edge, stage

DIAMOND = config(
    stage(0, "text"),
    stage(1),
    stage(2),
    stage(3, "audio"),
    stage(4, "image"),
    edge(0, 1),
    edge(0, 2),
    edge(1, 3),
    edge(2, 3),
    edge(0, 4),
)


def test_text_alone_needs_the_first_stage_alone() -> None:
    """Fault: stages of modalities nobody asked for are started."""
    graph = DIAMOND.active(("text",))
    assert graph.stages == (0,)
    assert [(edge.source, edge.target) for edge in graph.edges] == [(0, CLIENT)]


def test_a_modality_needs_everything_upstream_and_only_its_own_way_to_the_caller() -> None:
    """Fault: a branch of a diamond is forgotten, or text is sent to a caller who wants audio alone."""
    graph = DIAMOND.active(("audio",))
    assert graph.stages == (0, 1, 2, 3)
    assert [(edge.source, edge.target) for edge in graph.edges] == [(0, 1), (0, 2), (1, 3), (2, 3), (3, CLIENT)]
    assert graph.entries == (0,)


def test_text_has_no_window_to_the_caller_and_media_have_one() -> None:
    """Fault: a slow reader of text stops the stage, or a slow listener does not."""
    outer = [edge for edge in DIAMOND.active(("text", "audio")).edges if edge.target == CLIENT]
    assert [(edge.source, edge.windowed) for edge in outer] == [(0, False), (3, True)]


def test_an_edge_that_does_not_stream_has_no_window() -> None:
    """Fault: the one payload of a gathering sender waits for credit."""
    assert not EdgePlan(0, 1, streaming=False, window=4).windowed


def test_modalities_that_nobody_makes_are_named() -> None:
    """Fault: an unknown modality is silently left out of the answer."""
    assert DIAMOND.missing(("text", "smell", "video")) == ("smell", "video")
    assert DIAMOND.missing(("audio",)) == ()


def test_a_plan_is_made_from_resolved_stages_and_edges() -> None:
    """Fault: a deployed window, process or lookahead does not reach the machine."""
    first = ARStageConfig(
        stage_id=0,
        model_stage="a",
        model_path="",
        loader="m:l",
        process="one",
        num_replicas=2,
        max_num_seqs=3,
        lookahead=5,
    )
    second = GenerationStageConfig(
        stage_id=1,
        model_stage="b",
        model_path="",
        loader="m:l",
        process="two",
        final_output_type="audio",
        first_step_timeout_s=7.0,
        step_timeout_s=9.0,
    )
    made = OrchestratorConfig.of([first, second], [Edge(0, 1, window=6, streaming=False)], Limits(strikes=9))
    assert made.stage(0).max_num_seqs == 3
    assert made.stage(0).lookahead == 5
    assert made.stage(1).cancel_timeout_s == 9.0 + CANCEL_MARGIN_S
    assert made.edges == (EdgePlan(0, 1, streaming=False, window=6),)
    assert made.processes == {"one": 2, "two": 1}
    assert made.limits.strikes == 9
    assert [plan.name for plan in made.stages_of("two")] == ["b"]
