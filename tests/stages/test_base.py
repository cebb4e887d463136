"""What a stage knows of a request."""

from __future__ import annotations

from omnistage.core.params import SamplingParams
from omnistage.core.request import OmniRequest, Prompt
from omnistage.stages.base import StageRequest


def test_a_stage_request_answers_to_the_requests_id() -> None:
    """Fault: a stage and the machine name one request differently."""
    request = OmniRequest(request_id="r7", prompt=Prompt(text="?"), wants=("text",), stage_params={0: SamplingParams()})
    assert StageRequest(request, 1, 0, (0, 1), frozenset({-1})).request_id == "r7"
