"""Omni over a runtime without stages: order, errors, streams, threads, and its end."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from omnistage.core.errors import EngineClosedError, ErrorInfo, InvalidRequestError, StageUnavailableError
from omnistage.core.request import OmniRequest
from omnistage.engine import omni
from omnistage.engine.omni import Omni, prompts_of
from omnistage.runtime.base import ReplicaStatus, RuntimeStatus, Sink
from tests.engine.models import SPOKEN
from tests.fakes_runtime import FakeRuntime


class Echo(FakeRuntime):
    """Answers with the prompt; those that begin with "slow" last, those with "bad" with an error."""

    def _answer(self, request: OmniRequest, sink: Sink) -> None:
        prompt = request.prompt.text or ""
        if prompt.startswith("slow"):
            self.gate.wait(0.1)
        fake = FakeRuntime((prompt,))
        fake.error = ErrorInfo("stage_failed", "broke", "speaker") if prompt.startswith("bad") else None
        fake._answer(request, sink)


@pytest.fixture
def runtime() -> FakeRuntime:
    return Echo()


@pytest.fixture
def model(runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> Iterator[Omni]:
    monkeypatch.setattr(omni, "composed", lambda *_, **__: (SPOKEN, runtime))
    with Omni("talker") as one:
        yield one


def test_outputs_come_in_the_order_of_the_prompts(model: Omni) -> None:
    """Fault: outputs in the order in which they were finished."""
    outputs = model.generate(["slow one", "two", "three"], use_tqdm=False)
    assert [output.text for output in outputs] == ["slow one", "two", "three"]
    assert [output.metrics["prompt_index"] for output in outputs] == [0, 1, 2]
    assert outputs[0].multimodal_output.numpy("audio").shape == (240,)
    assert (outputs[0].final_output_type, outputs[0].stage_id, outputs[0].finished) == ("audio", 1, True)


@pytest.mark.parametrize("stream", [False, True])
def test_media_of_many_prompts_are_not_all_held_at_once(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a list of a thousand videos is read before the first has been answered."""

    class Counting(FakeRuntime):
        open = most_open = 0

        def submit(self, request: OmniRequest, sink: Sink) -> None:
            self.open += 1
            self.most_open = max(self.open, self.most_open)
            super().submit(request, sink)

        def _answer(self, request: OmniRequest, sink: Sink) -> None:
            time.sleep(0.02)
            self.open -= 1
            super()._answer(request, sink)

    runtime = Counting()
    monkeypatch.setattr(omni, "composed", lambda *_, **__: (replace(SPOKEN, reads=("text", "image")), runtime))
    monkeypatch.setattr(omni, "MOST_OPEN_NBYTES", 10)
    prompts = [{"prompt": "x", "multi_modal_data": {"image": b"123456"}} for _ in range(8)]
    with Omni("talker") as one:
        outputs = list(one.generate(prompts, stream=True)) if stream else one.generate(prompts, use_tqdm=False)
    assert sum(output.finished for output in outputs) == 8
    assert runtime.most_open == 2


def test_one_prompt_that_fails_does_not_take_the_others_along(model: Omni) -> None:
    """Fault: an exception for all, or an empty answer for the one."""
    outputs = model.generate(["bad", "", "good"])
    assert [output.error.code if output.error else None for output in outputs] == [
        "stage_failed",
        "invalid_request",
        None,
    ]
    assert outputs[2].text == "good"


def test_parameters_that_are_wrong_for_all_are_refused_at_once(model: Omni, runtime: FakeRuntime) -> None:
    """Fault: a list that is too long is answered with as many errors as there are prompts."""
    with pytest.raises(InvalidRequestError, match="at most 2"):
        model.generate(["a", "b"], [{}, {}, {}])
    assert runtime.submitted == []


def test_parameters_that_suit_a_prompt_s_own_modalities_pass(model: Omni) -> None:
    """Fault: several choices are refused for a prompt that asks for text alone."""
    [output] = model.generate({"prompt": "a", "modalities": ["text"]}, [{"n": 2}])
    assert (output.error, output.text) == (None, "a")


def test_streams_hold_every_part_and_say_whose_it_is(model: Omni) -> None:
    """Fault: parts of several prompts cannot be told apart, or the stream does not end."""
    parts = list(model.generate(["one", "slow two", "bad"], stream=True))
    texts = {index: "".join(part.text for part in parts if part.metrics["prompt_index"] == index) for index in range(3)}
    assert texts == {0: "one", 1: "slow two", 2: "bad"}
    assert sum(part.finished for part in parts) == 3


def test_a_stream_that_is_left_ends_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the stages go on after the caller has broken out of the loop."""
    runtime = FakeRuntime()
    runtime.gate.clear()
    monkeypatch.setattr(omni, "composed", lambda *_, **__: (SPOKEN, runtime))
    with Omni("talker") as model:
        for part in model.generate("x", stream=True):
            assert part.text == "Hello"
            break
        assert runtime.gate.wait(5)  # set by the abort
        assert list(runtime.aborted) == [runtime.submitted[0].request_id]


async def test_it_works_inside_a_running_loop(model: Omni) -> None:
    """Fault: a notebook's loop is in the way."""
    assert model.generate("a")[0].text == "a"
    outputs = await asyncio.to_thread(model.generate, ["b", "c"], use_tqdm=False)
    assert [output.text for output in outputs] == ["b", "c"]


def test_a_closed_one_refuses(model: Omni, runtime: FakeRuntime) -> None:
    """Fault: a call after the end waits for ever."""
    assert model.status().state == "ready"
    model.close()
    model.close()
    assert runtime.closed_with == 0.0
    with pytest.raises(EngineClosedError):
        model.generate("a")


def test_stages_that_do_not_start_are_told_with_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: Omni(...) returns, and every prompt fails."""

    class Down(FakeRuntime):
        def status(self) -> RuntimeStatus:
            down = ReplicaStatus("speaker", 0, "down", "the file is broken")
            return RuntimeStatus("degraded", {"thinker": "ready", "speaker": "down"}, (down,))

    runtime = Down()
    monkeypatch.setattr(omni, "composed", lambda *_, **__: (SPOKEN, runtime))
    with pytest.raises(StageUnavailableError, match=r"speaker is down \(the file is broken\)"):
        Omni("talker")
    assert runtime.closed_with == 0.0


def test_a_replica_that_still_loads_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: "the stages did not start", where one of two replicas is slower than all other stages."""

    class Late(FakeRuntime):
        def status(self) -> RuntimeStatus:
            replicas = (ReplicaStatus("speaker", 0, "ready"), ReplicaStatus("speaker", 1, "starting", "loading"))
            return RuntimeStatus("starting", {"thinker": "ready", "speaker": "ready"}, replicas)

    monkeypatch.setattr(omni, "composed", lambda *_, **__: (SPOKEN, Late()))
    with Omni("talker") as one:
        assert one.generate(["a"], use_tqdm=False)[0].error is None


def test_a_list_of_messages_is_one_prompt() -> None:
    """Fault: each message of a chat is answered on its own."""
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert prompts_of(chat) == [chat]
    assert prompts_of([chat, chat]) == [chat, chat]
    assert prompts_of("a") == ["a"]
    assert prompts_of(("a", "b")) == ["a", "b"]
    with pytest.raises(InvalidRequestError, match="prompts"):
        prompts_of([])


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from omnistage.engine import omni
from tests.engine.models import SPOKEN
from tests.fakes_runtime import FakeRuntime

omni.composed = lambda *_, **__: (SPOKEN, FakeRuntime())
model = omni.Omni("talker")
print(model.generate("x")[0].text)
for part in model.generate("y", stream=True):
    break
"""


def test_a_script_without_close_or_main_guard_ends() -> None:
    """Fault: the program hangs at its end."""
    script = SCRIPT.format(root=str(Path(__file__).parents[2]))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello world.\n", "")
