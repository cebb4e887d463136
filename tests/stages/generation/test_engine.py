"""The generation engine as traces, over a model without torch.

Faults pinned: the end before the last input; credit before the bridge has returned; a state that moved although the run
failed or was interrupted; an interruption that hits another request; a fault that is reported twice, or not at all.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from omnistage.config.stage import GenerationStageConfig
from omnistage.core.errors import InvalidRequestError
from omnistage.core.params import GenerationParams
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.request import OmniRequest
from omnistage.modeling.protocols import Interrupted, StageInput
from omnistage.stages.base import PreparedInput, StageOutput, StageRequest
from omnistage.stages.generation.engine import MAX_INTERRUPTIONS, GenerationEngine, Made
from omnistage.wire.messages import CLIENT
from tests.fakes import RATE, as_sound, as_text, load_words, request_of, sound_config, words_bridge


class Recorder:
    """A model that makes the word it is fed; the state is the words so far. `faults` raises for a batch, by its words."""

    def __init__(self, **faults: Exception) -> None:
        self.faults = faults
        self.batches: list[tuple[str, ...]] = []
        self.begun: list[Any] = []
        self.interruptions = 0
        self.running: threading.Event | None = None
        self.short = False

    def begin(self, request: OmniRequest, params: Any) -> tuple[str, ...]:
        if "begin" in self.faults:
            raise self.faults["begin"]
        self.begun.append(params)
        return ()

    def batch_key(self, chunk: Mapping[str, Any], state: object) -> object:
        if "key" in self.faults:
            raise self.faults["key"]
        return "words"

    def cost(self, chunk: Mapping[str, Any]) -> int:
        return 1

    def run(self, batch: Sequence[tuple[Mapping[str, Any], tuple[str, ...]]]) -> list[Made]:
        words = tuple(chunk["word"] for chunk, _ in batch)
        self.batches.append(words)
        for word in words:
            if word in self.faults:
                raise self.faults[word]
        made: list[Made] = [(as_text(chunk["word"], len(state)), (*state, chunk["word"])) for chunk, state in batch]
        return made[1:] if self.short else made

    def interrupt(self) -> None:
        self.interruptions += 1


class Stage:
    """An engine over a Recorder, and a clock that a test moves."""

    def __init__(
        self, config: GenerationStageConfig | None = None, *, entry: bool = False, **faults: Exception
    ) -> None:
        self.now_s = 0.0
        self.model = Recorder(**faults)
        config = config or sound_config(max_num_seqs=4)
        bridge = None if entry else words_bridge
        self.engine = GenerationEngine(
            config, self.model, bridge, load_words(config) if entry else None, clock=lambda: self.now_s
        )

    def add(self, request_id: str = "r", age: int = 0, text: str = "one two", **changes: Any) -> None:
        request = request_of(text, request_id, **changes)
        self.engine.add(StageRequest(request, 1, 1, (0, age), frozenset({CLIENT})))

    def feed(self, words: str | None, request_id: str = "r", seq: int = 0, *, last: bool = False) -> None:
        item = MultimodalPayload(metadata={"text": words}) if words is not None else None
        self.engine.feed(request_id, 0, seq, item, last=last)


def said(outputs: list[StageOutput]) -> list[Any]:
    """Per output: its text, the consumed items, the reason or the error's message, without what is absent."""
    found: list[Any] = []
    for output in outputs:
        if output.capture is not None:
            found.append(output.capture.metadata["text"].strip())
        found.extend(output.consumed)
        if output.finish_reason:
            found.append(output.finish_reason)
        if output.error:
            found.append(output.error.message)
    return found


def test_inputs_run_in_order_and_the_end_comes_with_the_last() -> None:
    """Fault: an input is lost, credit comes late, or the stage ends before its last input."""
    stage = Stage()
    stage.add()
    assert said(stage.engine.step()) == []
    assert not stage.engine.has_work()
    stage.feed("a b", seq=0)
    stage.feed("c", seq=1, last=True)
    assert said(stage.engine.step()) == [(0, 1), "a"]
    assert said(stage.engine.step()) == ["b"]
    assert said(stage.engine.step()) == ["c", "done"]
    assert not stage.engine.has_work()
    assert stage.engine.gauges()["running"] == 0


def test_credit_comes_back_when_the_bridge_has_returned() -> None:
    """Fault: items beyond the window are acknowledged, or never."""
    stage = Stage(sound_config(input_window=2))
    stage.add()
    for seq in range(3):
        stage.feed(f"w{seq}", seq=seq)
    assert said(stage.engine.step()) == [(0, 1), "w0", (0, 2)]


def test_a_bare_end_ends_a_request_without_work() -> None:
    """Fault: a request whose sources said nothing never ends."""
    stage = Stage()
    stage.add()
    stage.feed(None, last=True)
    assert said(stage.engine.step()) == [(0, 0), "done"]
    assert stage.model.begun == []


def test_an_entry_stage_is_fed_by_its_processor_or_by_the_request_itself() -> None:
    """Fault: an entry stage waits for items that nobody sends."""
    stage = Stage(entry=True)
    stage.add(text="x y")
    assert said(stage.engine.step()) == ["x"]
    assert said(stage.engine.step()) == ["y", "done"]

    seen: list[Any] = []

    class Reader(Recorder):
        def run(self, batch: Sequence[tuple[Mapping[str, Any], Any]]) -> list[Made]:
            seen.extend(chunk["request"].prompt.text for chunk, _ in batch)
            return [(None, state) for _, state in batch]

    engine = GenerationEngine(sound_config(), Reader())
    engine.add(StageRequest(request_of("whole prompt"), 1, 1, (0, 0), frozenset({CLIENT})))
    assert said(engine.step()) == ["done"]
    assert seen == ["whole prompt"]


def test_the_stage_parameters_of_the_request_reach_the_model() -> None:
    """Fault: a voice that was asked for is replaced by the default one, or the reverse."""
    stage = Stage()
    asked = GenerationParams(voice="amy")
    stage.add("asked", 0, stage_params={1: asked})
    stage.add("plain", 1)
    stage.feed("a", "asked")
    stage.feed("b", "plain")
    stage.engine.step()
    assert stage.model.begun == [asked, GenerationParams()]


def test_requests_that_fit_together_run_together_oldest_first() -> None:
    """Fault: one request a step although the model can batch."""
    stage = Stage()
    stage.add("b", 1)
    stage.add("a", 0)
    stage.feed("later", "b")
    stage.feed("first", "a")
    stage.engine.step()
    assert stage.model.batches == [("first", "later")]


def test_a_batch_that_fails_runs_one_by_one_once() -> None:
    """Fault: the whole batch fails for one, or a state moves in a run that failed."""
    stage = Stage(bad=ValueError("odd"))
    for age, word in enumerate(["fine", "bad", "good"]):
        stage.add(word, age)
        stage.feed(word, word)
    outputs = stage.engine.step()
    assert stage.model.batches == [("fine", "bad", "good"), ("fine",), ("bad",), ("good",)]
    assert [o.error.message for o in outputs if o.error] == ["ValueError: odd"]
    assert [o.request_id for o in outputs if o.capture] == ["fine", "good"]
    stage.feed("again", "fine", 1)
    assert said(stage.engine.step())[-1] == "again"
    gauges = stage.engine.gauges()
    assert gauges.pop("input_nbytes") >= 0
    assert gauges == {"running": 2, "waiting": 0, "parked_total": 0, "rerun_total": 1}


def test_a_model_that_returns_too_few_results_is_at_fault() -> None:
    """Fault: results are given to the wrong requests."""
    stage = Stage()
    stage.model.short = True
    stage.add()
    stage.feed("a")
    assert said(stage.engine.step()) == [(0, 0), "the model of stage speaker made 0 results of 1 inputs"]


def test_an_interrupted_run_has_not_happened() -> None:
    """Fault: the input of an interrupted run is lost, or the request fails."""
    stage = Stage(slow=Interrupted())
    stage.add()
    stage.feed("slow", last=True)
    assert said(stage.engine.step()) == [(0, 0)]
    assert stage.engine.has_work()
    stage.model.faults.clear()
    assert said(stage.engine.step()) == ["slow", "done"]


def test_runs_that_are_interrupted_without_end_fail_the_request() -> None:
    """Fault: a model that always says it was interrupted keeps its request and its stage busy for ever."""
    stage = Stage(slow=Interrupted())
    stage.add()
    stage.feed("slow")
    outputs = [word for _ in range(MAX_INTERRUPTIONS) for word in said(stage.engine.step())]
    assert outputs == [(0, 0), f"a run was ended early {MAX_INTERRUPTIONS} times"]
    assert not stage.engine.has_work()


def test_an_interruption_before_the_run_keeps_it_from_beginning() -> None:
    """Fault: a cancel that comes while inputs are bridged finds no run to end, and a whole run is made for nobody."""
    stage = Stage()

    def bridged_while_cancelled(*given: Any, **named: Any) -> Any:
        stage.engine.interrupt("r")
        return words_bridge(*given, **named)

    stage.engine._bridge = bridged_while_cancelled
    stage.add()
    stage.feed("word")
    stage.engine.step()
    assert stage.model.batches == []
    stage.engine.cancel("r")
    stage.engine.interrupt("r")  # late, when it is gone: nothing of it may reach who comes next under that name
    stage.engine._bridge = words_bridge
    stage.add()
    stage.feed("word", last=True)
    assert said(stage.engine.step()) == [(0, 0), "word", "done"]


def test_an_interruption_reaches_the_model_only_in_a_run_for_that_request_alone() -> None:
    """Fault: a cancel ends the run of somebody else."""
    entered, leave = threading.Event(), threading.Event()

    class Slow(Recorder):
        def run(self, batch: Sequence[tuple[Mapping[str, Any], Any]]) -> list[Made]:
            entered.set()
            assert leave.wait(5)
            return super().run(batch)

    stage = Stage()
    stage.engine._model = stage.model = Slow()
    stage.engine.interrupt("r")
    for requests, expected in ((["r"], 1), (["r", "s"], 0)):
        stage.model.interruptions = 0
        for age, request_id in enumerate(requests):
            stage.add(request_id, age)
            stage.feed("word", request_id)
        entered.clear()
        leave.clear()
        thread = threading.Thread(target=stage.engine.step)
        thread.start()
        assert entered.wait(5)
        stage.engine.interrupt("r")
        stage.engine.interrupt("other")
        leave.set()
        thread.join(5)
        assert stage.model.interruptions == expected
        for request_id in requests:
            stage.engine.cancel(request_id)


@pytest.mark.parametrize("where", ["begin", "key"])
def test_what_the_model_refuses_fails_that_request(where: str) -> None:
    """Fault: parameters or inputs that the model cannot serve end the step for everybody."""
    stage = Stage()
    stage.model.faults[where] = InvalidRequestError("voice: 'x' is not accepted", field="voice")
    stage.add()
    stage.feed("a")
    [consumed, failed] = stage.engine.step()
    assert consumed.consumed == ((0, 0),)
    assert failed.error is not None
    assert (failed.error.code, failed.error.field) == ("invalid_request", "voice")
    assert not stage.engine.has_work()


def test_a_gap_a_broken_bridge_and_a_broken_processor_fail_their_request() -> None:
    """Fault: an error outside a run is raised into the host, or lost."""
    stage = Stage()
    stage.add("gap", 0)
    stage.add("bridge", 1)
    stage.feed("a", "gap", seq=1)
    stage.engine.feed("bridge", 0, 0, MultimodalPayload(), last=False)
    stage.feed("a", "unknown")
    outputs = stage.engine.step()
    assert [
        (o.request_id, "item 1" in o.error.message or "KeyError" in o.error.message) for o in outputs if o.error
    ] == [
        ("gap", True),
        ("bridge", True),
    ]

    def refuse(request: OmniRequest) -> list[StageInput]:
        raise InvalidRequestError("prompt: empty")

    engine = GenerationEngine(sound_config(), Recorder(), processor=refuse)
    engine.add(StageRequest(request_of(), 1, 1, (0, 0), frozenset({CLIENT})))
    assert said(engine.step()) == ["prompt: empty"]


def test_a_bridge_that_fails_after_a_run_fails_the_request_without_its_capture() -> None:
    """Fault: the item behind a full window is bridged after a run, and its fault escapes."""
    stage = Stage(sound_config(input_window=1))
    stage.add()
    stage.feed("a", seq=0)
    stage.engine.feed("r", 0, 1, MultimodalPayload(), last=False)
    outputs = stage.engine.step()
    assert [type(o.error).__name__ for o in outputs] == ["NoneType", "ErrorInfo"]


def test_a_cancelled_request_says_nothing_more() -> None:
    """Fault: an error or an output of a request after its cancel."""
    stage = Stage()
    stage.add()
    stage.feed("a", seq=5)
    stage.engine.cancel("r")
    stage.engine.cancel("never seen")
    assert not stage.engine.has_work()
    assert stage.engine.step() == []


def test_a_request_that_is_not_ready_is_passed_over() -> None:
    """Fault: work for a request that cannot hand over, or none for the others."""
    stage = Stage(sound_config(max_num_seqs=1))
    stage.add("held", 0)
    stage.add("free", 1)
    stage.feed("a", "held")
    stage.feed("b", "free")
    stage.engine.set_ready("held", False)
    stage.engine.step()
    assert stage.model.batches == [("b",)]
    assert not stage.engine.has_work()
    stage.engine.set_ready("held", True)
    assert stage.engine.has_work()
    stage.engine.step()
    assert stage.model.batches == [("b",), ("a",)]
    assert stage.engine.gauges()["parked_total"] == 1


def test_usage_and_times_are_those_of_the_request() -> None:
    """Fault: audio of a neighbour is counted, or waiting counts as work."""

    class Speaker(Recorder):
        def run(self, batch: Sequence[tuple[Mapping[str, Any], Any]]) -> list[Made]:
            stage.now_s += 2.0
            return [(as_sound(chunk["word"], 0), state) for chunk, state in batch]

    stage = Stage()
    stage.engine._model = Speaker()
    stage.add()
    stage.now_s = 5.0
    stage.feed("a b", last=True)
    stage.engine.step()
    [done] = stage.engine.step()
    assert done.finish_reason == "done"
    assert done.usage.audio_seconds == 2.0 * RATE / RATE
    assert (done.times.queued_s, done.times.running_s, done.times.forward_s) == (5.0, 4.0, 4.0)
    assert done.times.prepare_s is None


def test_inputs_that_were_prepared_elsewhere_are_taken_as_they_are() -> None:
    """Fault: a request is prepared twice; the time for which it was prepared elsewhere is lost."""

    def refuse(request: OmniRequest) -> list[StageInput]:
        raise AssertionError("prepared twice")

    now_s = 10.0
    for processor in (None, refuse):
        model = Recorder()
        engine = GenerationEngine(sound_config(), model, processor=processor, clock=lambda: now_s)
        prepared = PreparedInput([StageInput({"word": "made"})], prepare_s=2.0, elapsed_s=3.0)
        engine.add(StageRequest(request_of("asked"), 1, 1, (0, 0), frozenset({CLIENT}), prepared))
        [done] = engine.step()
        assert model.batches == [("made",)]
        assert (done.times.queued_s, done.times.prepare_s) == (3.0, 2.0)


def test_a_request_that_may_not_hand_over_copies_out_what_it_was_lent() -> None:
    """Fault: what waits for a request whose caller reads slowly fills the arena that everybody else needs."""
    stage = Stage(sound_config(input_window=1))
    stage.add()

    def feed(seq: int) -> None:
        item = MultimodalPayload({"x": Tensor.of(np.zeros(4, np.uint8))}, {"text": f"w{seq}"}, lent=True)
        stage.engine.feed("r", 0, seq, item, last=False)

    for seq in range(3):
        feed(seq)
    assert [output.copied for output in stage.engine.step()] == [(), ()]
    stage.engine.set_ready("r", False)
    assert stage.engine.has_work()
    (output,) = stage.engine.step()
    assert (output.consumed, output.copied) == ((), ((0, 2),))
    feed(3)
    (output,) = stage.engine.step()
    assert (output.consumed, output.copied) == ((), ((0, 3),))
    assert not stage.engine.has_work()
    stage.engine.set_ready("r", True)
    assert [said([output]) for output in stage.engine.step()] == [["w1", (0, 2)]]
