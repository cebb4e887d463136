"""What a served model is said to make."""

from dataclasses import replace

from tests.engine.models import SPEAKER, SPOKEN, THINKER


def test_modalities_come_in_the_pipeline_s_order_each_once() -> None:
    """Fault: a modality is listed twice where two stages make it, or one of a stage that is not final is listed."""
    inner = replace(THINKER, stage_id=7, makes=None)
    model = replace(SPOKEN, stages=(inner, SPEAKER, THINKER, replace(SPEAKER, stage_id=9)))
    assert model.modalities == ("audio", "text")
    assert model.maker("audio") == SPEAKER
    assert model.maker("text") == THINKER
