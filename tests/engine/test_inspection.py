"""The truth about an engine with real worker processes: what is held before and after, and sums that equal the callers'."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from omnistage.config.stage import OutputEdge
from omnistage.core.errors import OmniError
from omnistage.core.params import GenerationParams
from omnistage.engine.admission import Ask
from omnistage.engine.async_omni_engine import AsyncOmniEngine
from omnistage.engine.served import ServedModel, ServedStage
from omnistage.obs.metrics import GaugeFigures, ServerMetrics
from omnistage.runtime.base import Runtime
from omnistage.serve.serving import figures_of
from omnistage.wire.messages import CLIENT
from tests.fakes import RATE, echo_config, sound_config
from tests.runtime.harness import driver, inline, remote
from tests.states import differences

MODEL = ServedModel(
    "fake",
    (
        ServedStage(0, "writer", GenerationParams(), makes="text"),
        ServedStage(1, "speaker", GenerationParams(), makes="audio"),
    ),
)
STAGES = (
    echo_config(
        loader="tests.fakes:load_choices",
        process="writing",
        outputs=(OutputEdge(target=1), OutputEdge(target=CLIENT)),
    ),
    sound_config(process="speaking"),
)


class Counted:
    """What callers counted, by outcome."""

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        self.tokens: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    async def ask(self, engine: AsyncOmniEngine, words: str, *, stream: bool = True, leave_after: int = -1) -> None:
        outcome, tokens, seconds, parts = "aborted", 0, 0.0, 0
        try:
            async with aclosing(engine.generate(Ask(words, stream=stream))) as outputs:
                async for part in outputs:
                    parts += 1
                    tokens += len(part.token_ids)
                    sound = part.multimodal_output
                    seconds += len(sound.numpy("audio")) / RATE if "audio" in sound.tensors else 0.0
                    outcome = "finished" if part.finished else outcome
                    if parts == leave_after:
                        break
        except OmniError:
            outcome = "failed"
        self.requests[outcome] = self.requests.get(outcome, 0) + 1
        self.tokens[outcome] = self.tokens.get(outcome, 0) + tokens
        self.seconds[outcome] = self.seconds.get(outcome, 0.0) + seconds


@pytest.fixture(params=["thread", "process"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[tuple[AsyncOmniEngine, ServerMetrics]]:
    """With the driver in a thread of this process, and in a process of its own."""
    metrics = ServerMetrics()
    form: Callable[..., Runtime] = driver if request.param == "thread" else remote
    runtime = form(*STAGES, observer=metrics)
    engine = AsyncOmniEngine(MODEL, runtime, observer=lambda record: metrics.ended(figures_of(record)))
    engine.start()
    assert (await asyncio.to_thread(runtime.wait_ready, 20.0)).state == "ready"
    yield engine, metrics
    await engine.close()


async def settled(engine: AsyncOmniEngine, before: dict[str, Any]) -> list[str]:
    """What still differs from `before` once nothing moves any more, at most five seconds later."""
    left: list[str] = []
    for _ in range(50):
        left = differences(before, await engine.debug_state())
        if not left:
            break
        await asyncio.sleep(0.1)
    return left


async def quiet(engine: AsyncOmniEngine) -> dict[str, Any]:
    """A state that is the same a moment later: the last credits and cancels have arrived."""
    for _ in range(50):
        state = await engine.debug_state()
        await asyncio.sleep(0.05)
        if not differences(state, await engine.debug_state()):
            return state
    pytest.fail("it never comes to rest")


async def test_nothing_is_left_behind_in_any_process(served: tuple[AsyncOmniEngine, ServerMetrics]) -> None:
    """Fault: a request, ref, byte, thread or file that stays somewhere after requests have ended in every way."""
    engine, counted = served[0], Counted()
    await counted.ask(engine, "warm up")
    before = await quiet(engine)
    assert before["missing"] is None
    assert before["workers"].keys() == {"writing/0", "speaking/0"}
    assert before["workers"]["speaking/0"]["stages"]["speaker"]["running"] == 0
    await asyncio.gather(
        *(counted.ask(engine, "a b c d e", stream=bool(number % 3)) for number in range(12)),
        *(counted.ask(engine, "a sleep b sleep c", leave_after=1) for _ in range(4)),
        *(counted.ask(engine, "a fail") for _ in range(4)),
    )
    assert counted.requests == {"finished": 13, "aborted": 4, "failed": 4}
    assert await settled(engine, before) == []


async def test_what_is_held_shows_while_it_is_held(served: tuple[AsyncOmniEngine, ServerMetrics]) -> None:
    """Fault: a state that is always empty, and so always equal."""
    engine = served[0]
    before = await quiet(engine)
    asking = asyncio.create_task(Counted().ask(engine, " ".join(["sleep"] * 8)))
    expected, changed, during = {"open", "slots", "sinks", "requests", "outgoing_requests"}, set[str](), before
    for _ in range(50):
        during = await engine.debug_state()
        changed = {line.partition(":")[0].rpartition(".")[2] for line in differences(before, during)}
        if expected <= changed:
            break
        await asyncio.sleep(0.05)
    assert expected <= changed
    [request_id] = during["server"]["requests"]
    assert during["workers"]["writing/0"]["stages"]["writer"]["requests"] == [request_id]
    assert (during["driver"] or during["server"])["machine"]["control_calls"] == 0
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert await settled(engine, before) == []


async def test_sums_equal_what_callers_counted(served: tuple[AsyncOmniEngine, ServerMetrics]) -> None:
    """Fault: counters of requests, tokens, audio, stages or edges that differ from what went over them; series that stand still."""
    engine, metrics = served
    counted = Counted()
    await asyncio.gather(
        *(counted.ask(engine, "a b c d", stream=bool(number % 2)) for number in range(24)),
        *(counted.ask(engine, "a sleep b sleep c", leave_after=2) for _ in range(6)),
        *(counted.ask(engine, "a fail") for _ in range(3)),
    )
    values = samples(metrics)
    for outcome in ("finished", "aborted", "failed"):
        assert values[f'requests_total{{outcome="{outcome}"}}'] == counted.requests[outcome]
    assert values['audio_seconds_total{outcome="finished"}'] == counted.seconds["finished"] == 24 * 4
    assert values.get('audio_seconds_total{outcome="aborted"}', 0.0) == counted.seconds["aborted"]
    assert values['tokens_total{kind="completion",outcome="aborted"}'] == counted.tokens["aborted"] > 0
    assert values['stage_requests_total{outcome="finished",replica="0",stage="speaker"}'] == 24
    assert values['stage_errors_total{code="stage_failed",replica="0",stage="writer"}'] == 3
    assert values["request_seconds_count"] == 33
    assert values["real_time_factor_count"] >= 24
    for ends in ('source="writer",target="speaker"', 'source="speaker",target="client"'):
        assert values[f"edge_items_total{{{ends}}}"] >= 24 * 4
        assert values[f"edge_bytes_total{{{ends}}}"] > 0
        assert values[f"edge_transfer_seconds_sum{{{ends}}}"] > 0
    assert values['edge_queue_seconds_sum{source="writer",target="speaker"}'] > 0
    assert min(values.values()) >= 0


async def test_stages_in_this_process_are_shown_too() -> None:
    """Fault: a debugging aid that is lost where debugging is easiest."""
    runtime = inline(*STAGES)
    engine = AsyncOmniEngine(MODEL, runtime)
    engine.start()
    assert (await asyncio.to_thread(runtime.wait_ready, 20.0)).state == "ready"
    state = await engine.debug_state()
    assert state["workers"].keys() == {"inline"}
    assert state["workers"]["inline"]["stages"].keys() == {"writer", "speaker"}
    await engine.close()
    assert (await engine.debug_state())["missing"] == "the engine is closed"


def samples(metrics: ServerMetrics) -> dict[str, float]:
    """Every sample by its name without the prefix, and its labels."""
    lines = metrics.text(GaugeFigures(0, 0, {}, {})).decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#") and "_created" not in line)
    return {name.removeprefix("omnistage_"): float(value) for name, _, value in pairs}
