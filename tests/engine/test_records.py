"""The numbers of one request: as its consumer saw it, and at the moments that their definitions name."""

import asyncio
from contextlib import aclosing

import numpy as np
import pytest

from omnistage.core.errors import ErrorInfo, OmniError
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.request import StageTimes, Usage
from omnistage.engine import records
from omnistage.engine.admission import Ask
from omnistage.engine.async_omni_engine import AsyncOmniEngine
from omnistage.engine.outputs import part_of
from omnistage.engine.records import RecordState, RequestRecord, request_metrics
from omnistage.obs.figures import EdgeTotals
from omnistage.runtime.base import ClientClosed, ClientItem, ClientRestarted
from tests.engine.models import DRAWN, SPOKEN
from tests.fakes_runtime import FakeRuntime


class Clock:
    """Stands in for the time module."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(records, "time", clock)
    return clock


def word(text: str, *tokens: int) -> ClientItem:
    choice = {"index": 0, "text": text, "token_ids": list(tokens)}
    return ClientItem("r", 0, 0, "text", MultimodalPayload(metadata={"choices": [choice]}), False)


def sound(count: int) -> ClientItem:
    payload = MultimodalPayload({"audio": Tensor.of(np.zeros(count, np.float32))}, {"sample_rate": 8000})
    return ClientItem("r", 1, 0, "audio", payload, False)


def told(state: RecordState, clock: Clock, *timed: tuple[float, ClientItem | ClientRestarted]) -> None:
    for now_s, message in timed:
        clock.now_s = now_s
        state.came(message)


def test_times_are_those_of_their_definitions(clock: Clock) -> None:
    """Fault: a first text that is empty, a sound without samples, or a token that counts the wait for the first one."""
    state = RecordState(SPOKEN, streamed=True)
    told(state, clock, (100.5, word("", 1)), (101.0, word("a", 2, 3)), (101.1, sound(0)), (101.2, sound(8)))
    told(state, clock, (102.0, word("", 4)), (103.0, word("end")))
    clock.now_s = 104.0
    record = state.end(ClientClosed("r", "finished", usage={1: Usage(audio_seconds=8.0)}))
    assert (record.first_text_s, record.first_audio_s, record.end_s) == pytest.approx((1.0, 1.2, 4.0))
    assert record.tokens == 4
    assert record.tpot_s == pytest.approx((2.0 - 0.5) / 3)
    assert [gap_s for gap_s, _ in record.token_gaps] == pytest.approx([0.5, 1.0])
    assert [tokens for _, tokens in record.token_gaps] == [2, 1]
    assert record.rtf == pytest.approx(0.5)


def test_what_never_came_has_no_time() -> None:
    """Fault: a mean over one token, or a ratio to no sound."""
    state = RecordState(SPOKEN, streamed=True)
    state.came(word("a", 1))
    record = state.end(ClientClosed("r", "finished"))
    assert (record.tpot_s, record.first_audio_s, record.rtf) == (None, None, None)


def test_a_new_attempt_begins_anew(clock: Clock) -> None:
    """Fault: the times of an attempt whose items are void."""
    state = RecordState(SPOKEN, streamed=False)
    told(state, clock, (101.0, word("a", 1)), (102.0, ClientRestarted("r", 2)), (105.0, word("a", 1)))
    record = state.end(ClientClosed("r", "finished"))
    assert (record.first_text_s, record.tokens, record.token_gaps) == (5.0, 1, [])


@pytest.mark.parametrize(("streamed", "tokens", "seconds"), [(True, 2, 1.0), (False, 0, 0.0)])
def test_of_what_did_not_finish_counts_what_was_handed_over(streamed: bool, tokens: int, seconds: float) -> None:
    """Fault: tokens that no caller ever got, or none of those that one did."""
    state = RecordState(SPOKEN, streamed=streamed)
    for item in (word("a", 1, 2), sound(8000)):
        state.came(item)
        state.handed(part_of(item))
    state.came(word("never taken", 3))
    record = state.end(None)
    assert (record.outcome, record.usage.completion_tokens, record.usage.audio_seconds) == ("aborted", tokens, seconds)


def test_pictures_count_when_they_are_whole() -> None:
    """Fault: a picture on its way counts as one that was made."""
    state = RecordState(DRAWN, streamed=True)
    for metadata in ({"partial": 0}, {"index": 0}):
        picture = MultimodalPayload({"image": Tensor.of(np.zeros((2, 3, 3), np.uint8))}, metadata)
        state.handed(part_of(ClientItem("r", 0, 0, "image", picture, False)))
    assert state.end(None).usage.images == 1


def test_a_finished_request_counts_as_its_stages_say() -> None:
    """Fault: a token without text is forgotten, or what was handed over counts twice."""
    state = RecordState(SPOKEN, streamed=True)
    state.handed(part_of(word("a", 1)))
    record = state.end(ClientClosed("r", "finished", usage={0: Usage(prompt_tokens=3, completion_tokens=2)}))
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (3, 2)


def test_the_first_end_is_the_end() -> None:
    """Fault: a consumer that closes its iterator after the end has aborted a finished request."""
    state = RecordState(SPOKEN, streamed=True)
    state.end(ClientClosed("r", "finished"))
    assert state.end(None).outcome == "finished"


def test_metrics_have_names_and_leave_out_what_never_came() -> None:
    """Fault: numbers of stages, which only a deployment knows, or nulls, in what a caller gets."""
    record = RequestRecord("finished", first_text_s=0.1, end_s=2.0)
    closed = ClientClosed(
        "r",
        "finished",
        times={0: StageTimes(queued_s=0.1, prepare_s=0.02, running_s=0.4, forward_s=0.3), 1: StageTimes()},
        edges={(0, 1): EdgeTotals(2, 100, 0.2, 0.5), (1, -1): EdgeTotals(1, 7, units=4, schedule=((4, 1),))},
        waiting_s={0: 0.05},
        attempts=2,
    )
    assert request_metrics(SPOKEN, record, closed) == {
        "ttft_s": 0.1,
        "e2el_s": 2.0,
        "attempts": 2,
        "stages": {
            "thinker": {"waiting_s": 0.05, "queued_s": 0.1, "prepare_s": 0.02, "running_s": 0.4, "forward_s": 0.3},
            "speaker": {"queued_s": 0.0, "running_s": 0.0, "forward_s": 0.0},
        },
        "edges": {
            "thinker->speaker": {"items": 2, "nbytes": 100, "transfer_s": 0.2, "queue_s": 0.5},
            "speaker->client": {
                "items": 1,
                "nbytes": 7,
                "transfer_s": 0.0,
                "queue_s": 0.0,
                "units": 4,
                "schedule": [[4, 1]],
            },
        },
    }


async def test_sums_equal_what_consumers_counted() -> None:
    """Fault: outcomes, tokens or seconds of sound that differ from what the callers saw, among mixed requests and aborts."""
    told_of: list[RequestRecord] = []
    engine = AsyncOmniEngine(SPOKEN, FakeRuntime(("a", "b", "c", "d")), observer=told_of.append)
    counted = {"finished": 0, "aborted": 0}
    tokens = {"finished": 0, "aborted": 0}

    async def one(number: int) -> None:
        stops_after = 3 if number % 5 == 0 else None
        outcome, seen, parts = "aborted", 0, 0
        async with aclosing(engine.generate(Ask("x", stream=number % 2 == 0))) as outputs:
            async for part in outputs:
                parts += 1
                seen += sum(len(choice.token_ids) for choice in part.outputs)
                outcome = "finished" if part.finished else outcome
                if parts == stops_after:
                    break
        counted[outcome] += 1
        tokens[outcome] += seen

    await asyncio.gather(*(one(number) for number in range(60)))
    assert counted == {"finished": 54, "aborted": 6}
    for outcome in counted:
        records_of = [record for record in told_of if record.outcome == outcome]
        assert len(records_of) == counted[outcome]
        assert sum(record.usage.completion_tokens for record in records_of) == tokens[outcome]


async def test_what_a_caller_gets_is_what_is_counted() -> None:
    """Fault: the numbers in the reply are not those of the server's own series."""
    told_of: list[RequestRecord] = []
    engine = AsyncOmniEngine(SPOKEN, FakeRuntime(), observer=told_of.append)
    [output] = [part async for part in engine.generate(Ask("x"))]
    [record] = told_of
    assert (output.metrics["ttft_s"], output.metrics["ttfp_s"]) == (record.first_text_s, record.first_audio_s)
    assert (output.metrics["e2el_s"], output.metrics["rtf"]) == (record.end_s, record.rtf)


async def test_a_failure_counts_as_a_failure() -> None:
    """Fault: an error that the consumer was told counts as its own leaving."""
    told_of: list[RequestRecord] = []
    runtime = FakeRuntime()
    engine = AsyncOmniEngine(SPOKEN, runtime, observer=told_of.append)
    runtime.error = ErrorInfo("stage_failed", "broken", "speaker")
    with pytest.raises(OmniError, match="broken"):
        _ = [part async for part in engine.generate(Ask("x"))]
    assert [record.outcome for record in told_of] == ["failed"]
