"""The plan of a worker: what the launcher writes is what the worker reads."""

from omnistage.config.stage import ARStageConfig, GenerationStageConfig, OutputEdge
from omnistage.wire.plan import WorkerPlan


def test_a_plan_survives_its_journey_with_every_stage_kind() -> None:
    """Fault: a stage that loses its kind or its edges on the way to the worker."""
    stages = (
        ARStageConfig(
            stage_id=0,
            model_stage="writer",
            model_path="/models/a",
            loader="family.writer:load",
            process="p0",
            outputs=(OutputEdge(target=1, unit="rows", first=2, later=8), OutputEdge(target=-1)),
        ),
        GenerationStageConfig(stage_id=1, model_stage="voice", model_path="", loader="family.voice:load", process="p0"),
    )
    plan = WorkerPlan(
        process="p0", replica=1, epoch=3, stages=stages, address="ipc://x", identity="p0/1/3/t", life_line=5, arena=6
    )
    assert WorkerPlan.decode(plan.encode()) == plan
    assert plan.owner == "p0/1"
