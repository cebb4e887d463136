"""AsyncOmni: the public asynchronous face."""

import pytest

from omnistage.core.errors import InvalidRequestError, StageUnavailableError
from omnistage.engine import async_omni
from omnistage.engine.async_omni import AsyncOmni
from tests.engine.models import SPOKEN
from tests.fakes_runtime import FakeRuntime


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = FakeRuntime()
    monkeypatch.setattr(async_omni, "composed", lambda *_, **__: (SPOKEN, fake))
    return fake


async def test_parts_then_the_end(runtime: FakeRuntime) -> None:
    """Fault: the last part is not marked, or parameters do not reach their stage."""
    async with AsyncOmni("talker") as model:
        parts = [part async for part in model.generate("x", [{"temperature": 0.0}], priority=1)]
        [whole] = [part async for part in model.generate("x", stream=False)]
    assert "".join(part.text for part in parts) == whole.text
    assert parts[-1].finished
    assert (runtime.submitted[0].priority, runtime.submitted[0].stream, runtime.submitted[1].stream) == (1, True, False)
    assert runtime.closed_with == 0.0


async def test_leaving_and_aborting_end_the_request(runtime: FakeRuntime) -> None:
    """Fault: work goes on for nobody."""
    model = AsyncOmni("talker")
    runtime.gate.clear()
    parts = model.generate("x")
    first = await anext(parts)
    assert await model.abort(first.request_id)
    assert not await model.abort("unknown")
    assert list(runtime.aborted) == [first.request_id]


async def test_health_cache_and_shutdown(runtime: FakeRuntime) -> None:
    """Fault: a control of the engine is not reachable, or answers well where it is not."""
    model = AsyncOmni("talker")
    await model.check_health()
    await model.reset_prefix_cache()
    runtime.state = "starting"
    with pytest.raises(StageUnavailableError, match="the engine is starting"):
        await model.check_health()
    with pytest.raises(InvalidRequestError):
        await anext(model.generate(7))
    await model.shutdown(2.0)
    assert runtime.closed_with == 2.0
