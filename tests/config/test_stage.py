"""What typed stage configurations say together: which of their edges need an arena, and how large it is."""

import pytest

from omnistage.config.stage import CLIENT, ARStageConfig, OutputEdge, arena_edges, arena_nbytes


def stage(stage_id: int, *outputs: OutputEdge) -> ARStageConfig:
    return ARStageConfig(
        stage_id=stage_id, model_stage=f"s{stage_id}", model_path="", loader="a:b", process="p", outputs=outputs
    )


def test_an_arena_serves_the_edges_that_leave_with_more_than_a_message_holds() -> None:
    """Fault: memory for text, or for payloads that never leave their process."""
    stages = (
        stage(0, OutputEdge(target=1, connector="inproc", item_nbytes=9), OutputEdge(target=2, item_nbytes=9)),
        stage(1, OutputEdge(target=CLIENT)),
        stage(2, OutputEdge(target=CLIENT, item_nbytes=9)),
    )
    assert arena_edges(stages) == ((0, 2), (2, CLIENT))


@pytest.mark.parametrize(("num_edges", "nbytes"), [(0, 1000), (1, 1250), (3, 1750)])
def test_every_edge_adds_the_largest_payload_to_an_arena(num_edges: int, nbytes: int) -> None:
    """Fault: the room of the oldest request is taken from what all share, or is too small for what may be sent."""
    assert arena_nbytes(1000, num_edges) == nbytes
