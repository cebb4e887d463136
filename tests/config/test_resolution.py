"""The plan answers by stage and by edge."""

from omnistage.config.resolve import resolve_omni_config
from tests.config.samples import REGISTRY


def test_stages_are_found_by_id_and_edges_know_their_way() -> None:
    """Fault: the position of a stage taken for its id."""
    resolution = resolve_omni_config("sample", {"stage_1_process": "writer"}, registry=REGISTRY)
    assert resolution.stage(2).model_stage == "painter"
    assert [resolution.connector_of(edge) for edge in resolution.edges] == ["inproc", "shm"]
