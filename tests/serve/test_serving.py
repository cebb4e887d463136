"""What routes share: the model's name, and figures of an ended request. Bodies, test_routes_chat shows."""

import pytest

from omnistage.core.errors import ModelNotFoundError
from omnistage.core.request import Usage
from omnistage.engine.records import RequestRecord
from omnistage.obs.metrics import RequestFigures
from omnistage.serve.serving import figures_of
from tests.fakes_runtime import FakeRuntime
from tests.serve.live import serving_of


def test_only_the_served_model_is_there() -> None:
    """Fault: an empty or another name is taken for the served one."""
    serving = serving_of(FakeRuntime())
    serving.require_model(None)
    serving.require_model("talker")
    for name in ("", "Talker", "talker/"):
        with pytest.raises(ModelNotFoundError, match="accepted: talker"):
            serving.require_model(name)


def test_figures_are_those_of_the_record() -> None:
    """Fault: a number that is counted under another's name."""
    usage = Usage(prompt_tokens=1, cached_tokens=2, completion_tokens=3, audio_seconds=4.0, images=5)
    assert figures_of(RequestRecord("finished", usage, 5.0, 6.0, 7.0, 3, 5.0, 6.0, [(1.0, 2)])) == RequestFigures(
        "finished", 1, 2, 3, 4.0, 5.0, 6.0, 7.0, 0.5, ((1.0, 2),), 1.75, 5
    )
