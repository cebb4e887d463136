"""How starts go: side by side, with progress that is told, and in vain."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omnistage.runtime.driver import Driver
from omnistage.serve.routes.status import health_object
from omnistage.wire.messages import CLIENT
from tests.runtime.harness import Caller, driver, eventually, request, stage

begun: list[Driver] = []


@pytest.fixture
def begin() -> Iterator[Callable[..., Driver]]:
    def start(*stages: Any, **options: Any) -> Driver:
        begun.append(driver(*stages, restart_first_s=0.02, **options))
        begun[-1].start()
        return begun[-1]

    yield start
    for runtime in begun:
        runtime.close(0.0)
    begun.clear()


def test_stages_load_side_by_side_and_tell_how_far_they_are(
    tmp_path: Path, begin: Callable[..., Driver], caplog: pytest.LogCaptureFixture
) -> None:
    """Fault: a start that takes the sum of its stages' times, or minutes at 0 % of which nobody knows whether they lead anywhere.
    Each of the loaders waits until all three load."""
    loads: dict[str, Any] = {"loader": "tests.runtime.family:load_together", "extras": {"together": 3}}
    stages = (
        stage(0, "counter", tmp_path, targets=(1, 2), **loads),
        stage(1, "voice", tmp_path, sources=(0,), **loads),
        stage(2, "picture", tmp_path, sources=(0,), **loads),
    )
    with caplog.at_level(logging.INFO):
        runtime = begin(*stages)
        assert eventually(lambda: {replica.progress for replica in runtime.status().replicas} == {0.3}, 15.0)
        health = health_object(runtime.status())
        assert health["stages"] == {"counter": "starting", "voice": "starting", "picture": "starting"}
        assert {told["process"]: told["note"] for told in health["replicas"]} == dict.fromkeys(
            ("counter", "voice", "picture"), "30 of 100 MB of weights"
        )
        assert {(told["state"], told["progress"]) for told in health["replicas"]} == {("starting", 0.3)}
        (tmp_path / "go").touch()
        assert runtime.wait_ready(15.0).state == "ready"
    for name in ("counter", "voice", "picture"):
        assert f"stage {name}: 30% loaded, 30 of 100 MB of weights" in caplog.text
        assert f"stage {name}: ready, loaded in" in caplog.text


def test_a_stage_that_dies_at_every_start_stays_down_and_the_others_serve(
    tmp_path: Path, begin: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: restarts without end, descriptors or arenas that add up with every one, callers that wait for a stage that will
    not come, or that are refused although theirs is there."""
    crashing: dict[str, Any] = {"loader": "tests.runtime.family:load_crashing"}
    runtime = begin(
        stage(0, "counter", tmp_path, targets=(1, CLIENT), final_output_type="text"),
        stage(1, "voice", tmp_path, sources=(0,), **crashing),
    )
    supervisor: Any = runtime._supervisor
    say_down, descriptors = supervisor._say_down, []

    def counted(process: str, *told: Any) -> None:
        descriptors.append(len(os.listdir("/proc/self/fd")))
        say_down(process, *told)

    assert eventually(lambda: runtime.status().stages["counter"] == "ready", 15.0)
    monkeypatch.setattr(supervisor, "_say_down", counted)
    status = runtime.wait_ready(15.0)
    [voice] = [replica for replica in status.replicas if replica.process == "voice"]
    reason = "stage voice: exited with code 7: the library says goodbye"
    assert (voice.state, voice.restarts, voice.note, voice.pid) == ("down", 2, reason, None)
    health = health_object(status)
    assert (health["status"], health["stages"]) == ("degraded", {"counter": "ready", "voice": "down"})
    assert health["replicas"][0]["note"] == reason
    refused = Caller(runtime, request("spoken", wants=("audio",))).end(2.0)
    assert refused.error is not None and (refused.error.code, refused.error.stage) == ("stage_unavailable", "voice")
    assert reason in refused.error.message
    assert Caller(runtime, request("written", wants=("text",))).end(5.0).outcome == "finished"
    assert len(set(descriptors)) == 1 and len(supervisor.arenas) == 1


def test_a_package_that_is_missing_is_named_before_weights_load(tmp_path: Path, begin: Callable[..., Driver]) -> None:
    """Fault: minutes of loading, and then "No module named"; or three starts of what no start can mend."""
    hooks: dict[str, Any] = {
        "loader": "tests.runtime.family:load_crashing_later",
        "processor": "tests.runtime.needy:load",
    }
    runtime = begin(stage(0, "counter", tmp_path, **hooks))
    [counter] = runtime.wait_ready(15.0).replicas
    assert (counter.state, counter.restarts) == ("down", 0)
    assert "needs the package 'a_package_that_nobody_has', which is not installed" in counter.note
    assert counter.note.endswith("pip install a_package_that_nobody_has")
    assert not (tmp_path / "loads").exists()
