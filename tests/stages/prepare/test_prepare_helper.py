"""Real helper processes behind the runner of a stage.

Faults pinned: helpers prepare something else than the stage would; torch in a helper; one that is killed, hangs, or kills itself
takes other requests along; one outlives its worker.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import omnistage
from omnistage.core.errors import FetchError
from omnistage.stages.host import Prepared
from omnistage.stages.prepare.runner import PrepareRunner
from omnistage.wire.messages import CLIENT, Submit
from tests.fakes import request_of
from tests.processes import running
from tests.stages.prepare.family import entry, load_words
from tests.stages.prepare.test_coding import assert_equal

DEADLINE_S = 20.0
ROOT = Path(__file__).parents[3]
SOURCES = str(Path(omnistage.__file__).parents[1])  # those that are tested, wherever they lie
WHERE: dict[str, Any] = {"process": "main", "replica": 0, "epoch": 1}


class Stage:
    """The main thread of a worker, as far as helpers need one."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.config = entry(model_path=str(folder), **changes)
        self.mail: dict[str, Prepared] = {}
        self.failures: list[Exception] = []
        self._selector = selectors.DefaultSelector()
        self.runner = PrepareRunner(self.config, post=self._post, failed=self.failures.append, readied=lambda: None)
        self.runner.open(self._selector)

    def _post(self, mail: Prepared) -> None:
        assert mail.submit.request.request_id not in self.mail
        self.mail[mail.submit.request.request_id] = mail

    def until(self, happened: Callable[[], bool]) -> None:
        ends_s = time.monotonic() + DEADLINE_S
        while not happened():
            assert time.monotonic() < ends_s, (self.mail, self.runner.debug_state())
            self.runner.turn(time.monotonic())
            for key, _ in self._selector.select(0.05):
                key.data()

    def submit(self, text: str, request_id: str = "r", order: int = 0) -> None:
        request = request_of(text, request_id)
        self.runner.submit(
            Submit(**WHERE, stage_id=0, request=request, attempt=1, order=(0, order), active_targets=(CLIENT,))
        )

    def prepared(self, *texts: str) -> list[Any]:
        """What is made of each, all asked for at once."""
        names = [f"r{number}" for number in range(len(texts))]
        self.mail.clear()
        for order, (text, name) in enumerate(zip(texts, names, strict=True)):
            self.submit(text, name, order)
        self.until(lambda: len(self.mail) == len(texts))
        return [self.mail[name].prepared or self.mail[name].error for name in names]

    def helper(self) -> dict[str, Any]:
        described: dict[str, Any] = self.runner.debug_state()["helpers"]["0"]
        return described

    def end(self) -> None:
        self.runner.close()
        self._selector.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    running = Stage(tmp_path)
    running.until(lambda: running.runner.ready)
    yield running
    pids = [helper["pid"] for helper in running.runner.debug_state()["helpers"].values()]
    running.end()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert running.failures == []


@pytest.mark.parametrize("count", [1, 2])
def test_helpers_prepare_what_the_stage_itself_would(tmp_path: Path, count: int) -> None:
    """Fault: an input that changes on its way, or that reaches another request."""
    stage = Stage(tmp_path, processor_workers=count)
    stage.until(lambda: stage.runner.ready)
    texts = ["one two", "p-arrays", "three", "one two", "", "p-arrays four"]
    alone = load_words(stage.config)
    for found, text in zip(stage.prepared(*texts), texts, strict=True):
        expected = alone(request_of(text))
        assert len(found.value) == len(expected)
        for unit, other in zip(found.value, expected, strict=True):
            assert_equal(dict(unit.data), dict(other.data))
    refused, odd, after = stage.prepared("p-refuse", "p-odd", "after")
    assert (refused.code, refused.field, refused.stage) == ("invalid_request", "prompt", "writer")
    assert (odd.code, odd.stage) == ("stage_failed", "writer")
    assert "inputs[0].word as tuple" in odd.message
    assert after.value[0].data == {"word": "after"}
    stage.end()


def test_a_helper_shows_itself_and_has_no_torch(stage: Stage) -> None:
    """Fault: a helper of a gigabyte, or one that nobody can find."""
    (told,) = stage.prepared("p-where")
    assert told.value[0].data == {"word": "p-where", "pid": stage.helper()["pid"], "torch": False}
    assert stage.helper().keys() == {"pid", "rss_nbytes", "threads", "open_files", "state", "prepares"}


def test_a_killed_helper_loses_no_request(stage: Stage) -> None:
    """Fault: kill -9 of a helper fails what it had, or what waited for it."""
    pid = stage.helper()["pid"]
    stage.submit("p-sleep", "inside")
    stage.submit("waits", "waiting", 1)
    os.kill(pid, signal.SIGKILL)
    stage.until(lambda: len(stage.mail) == 2)
    assert [mail.error for mail in stage.mail.values()] == [None, None]
    assert stage.helper()["pid"] != pid
    assert stage.runner.gauges()["helper_restarts_total"] == 1


def test_a_poison_dies_alone_and_who_dies_once_is_prepared_again(stage: Stage) -> None:
    """Fault: neighbours of a request that kills its helper fail with it."""
    poison, once, fine = stage.prepared("p-exit", "p-once", "fine")
    assert (poison.code, poison.stage) == ("stage_failed", "writer")
    assert "exited with code 3, 2 times" in poison.message
    assert once.value[0].data == {"word": "p-once"}
    assert fine.value[0].data == {"word": "fine"}
    assert stage.runner.gauges()["helper_restarts_total"] == 3


def test_a_processor_that_hangs_is_killed(tmp_path: Path) -> None:
    """Fault: one request that is never prepared keeps all others from being prepared."""
    stage = Stage(tmp_path, step_timeout_s=0.3)
    stage.until(lambda: stage.runner.ready)
    hung, fine = stage.prepared("p-hang", "fine")
    assert (hung.code, hung.stage) == ("stage_failed", "writer")
    assert "step_timeout_s" in hung.message
    assert fine.value[0].data == {"word": "fine"}
    stage.end()


def test_a_request_that_asks_for_too_much_memory_fails_alone(tmp_path: Path) -> None:
    """Fault: a few bytes that unfold into gigabytes take the machine down, or the helper and who comes next."""
    stage = Stage(tmp_path, processor_memory_nbytes=64 * 2**20)
    try:
        stage.submit("p-fill", "large", 0)
        stage.submit("one", "next", 1)
        stage.until(lambda: len(stage.mail) == 2)
        error = stage.mail["large"].error
        assert error is not None
        assert (error.code, error.field) == ("payload_too_large", "the request")
        assert "67108864 bytes (processor_memory_nbytes)" in error.message
        assert stage.mail["next"].error is None
        assert stage.runner.gauges()["helper_restarts_total"] == 0
    finally:
        stage.runner.close()


def test_time_and_memory_are_bounded_anew_for_every_request(tmp_path: Path) -> None:
    """Fault: what earlier requests have used up ends a later one; or nothing is bounded at all."""
    stage = Stage(tmp_path, step_timeout_s=7.0, threads=2, processor_memory_nbytes=2**30)
    try:
        for name in ("first", "second"):
            stage.submit("p-limits", name)
            stage.until(partial(stage.mail.__contains__, name))
            prepared = stage.mail[name].prepared
            assert prepared is not None
            told = prepared.value[0].data
            assert 14 < told["most_s"] - told["used_s"] <= 16.1
            assert told["held_nbytes"] < told["most_nbytes"] <= told["held_nbytes"] + 2**30
    finally:
        stage.runner.close()


def test_a_prompt_of_megabytes_goes_there_and_back(stage: Stage) -> None:
    """Fault: what does not fit into a socket's buffer stops both sides."""
    text = "w" * 6_000_000
    (made,) = stage.prepared(text)
    assert made.value[0].data["word"] == text


def test_inputs_beyond_the_bound_fail_their_request(tmp_path: Path) -> None:
    """Fault: a helper makes more than its worker takes, which kills it in place of an answer."""
    stage = Stage(tmp_path, max_input_nbytes=1000)
    stage.until(lambda: stage.runner.ready)
    (refused,) = stage.prepared("w" * 3_000_000)
    assert refused.code == "payload_too_large"
    assert "at most 1000 (max_input_nbytes)" in refused.message
    assert stage.runner.gauges()["helper_restarts_total"] == 0
    stage.end()


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        ("load_nothing", "FileNotFoundError: no words"),
        ("load_and_die", "exited with code 4 before it was ready, 3 times"),
    ],
)
def test_a_processor_that_does_not_load_is_told(tmp_path: Path, processor: str, said: str) -> None:
    """Fault: a stage that is never ready and does not say why."""
    stage = Stage(tmp_path, processor=f"tests.stages.prepare.family:{processor}")
    stage.until(lambda: bool(stage.failures))
    assert said in str(stage.failures[0])
    assert not isinstance(stage.failures[0], FetchError)
    stage.end()


def test_signals_of_the_group_are_left_to_the_worker(stage: Stage) -> None:
    """Fault: Ctrl+C kills helpers while the server drains."""
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(stage.helper()["pid"], number)
    (made,) = stage.prepared("still here")
    assert len(made.value) == 2
    assert stage.runner.gauges()["helper_restarts_total"] == 0


def test_a_helper_dies_with_its_worker_although_it_hangs(tmp_path: Path) -> None:
    """Fault: kill -9 of a worker leaves its helper, which hangs in a library, for ever."""
    script = f"""
import selectors, sys, time
from pathlib import Path
from tests.stages.prepare.test_prepare_helper import Stage
stage = Stage(Path({str(tmp_path)!r}))
stage.until(lambda: stage.runner.ready)
stage.submit("p-hang")
print(stage.helper()["pid"], flush=True)
time.sleep(60)
"""
    path = os.pathsep.join([SOURCES, str(ROOT)])
    command = [sys.executable, "-c", script]
    with running(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
    ends_s = time.monotonic() + 2.0
    while _runs(pid) and time.monotonic() < ends_s:
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_no_familys_processor_brings_torch_into_a_helper() -> None:
    """Fault: every helper takes seconds to start and hundreds of megabytes, for a module that its processor shares."""
    script = """
import sys
from omnistage.config.hooks import resolve_hook
from omnistage.models.registry import REGISTRY
import omnistage.stages.prepare.helper
for name in REGISTRY.values():
    for stage in resolve_hook(name).stages:
        if stage.processor is not None and not stage.input_sources:
            resolve_hook(stage.processor)
            print(stage.processor)
print(sorted({"torch", "transformers", "zmq", "pydantic"} & sys.modules.keys()))
"""
    path = os.pathsep.join([SOURCES, str(ROOT)])
    told = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
    )
    *hooks, heavy = told.stdout.splitlines()
    assert hooks, told.stderr
    assert heavy == "[]"
